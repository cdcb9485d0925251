"""The worker: it takes a device, and claims and computes shard after shard.

A plan comes in; products, receipts and failures go out.
"""
