"""Records of the work: receipts, ledger, failures, journals of attempts, and locks.

Facts come in; files go out. `Store` knows which of them a plan has, and what they are called.
"""
