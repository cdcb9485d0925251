"""Who computes which shard, and what becomes of it.

A plan comes in; submitted tasks, retries and failures go out.
"""
