"""Records of the work: receipts, ledger, failures, journals of attempts, and locks.

Facts come in; files go out. A receipt is valid if `receipts` says so.
"""
