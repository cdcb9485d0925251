"""Records of the work: receipts, ledger, failures, journals of attempts, and locks.

Facts come in; files go out. The judge says which of them are valid.
"""
