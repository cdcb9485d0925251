"""Who runs which shard."""
