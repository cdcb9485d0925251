"""What is written down about work: receipts, ledger, missing shards, logs and locks.

Facts come in; files that prove themselves go out.
"""
