"""Shardwise: a stack of matrices, cut into shards, one GPU job a shard, one sum."""

__version__ = "0.1.0"

# The version of each stage's algorithm. Raise a number by hand when the bytes that the stage
# writes change: every finished shard is then computed again. A changed comment raises nothing.
ALGORITHM = {"synthesize": 2, "shard": 3, "multiply": 3, "reduce": 4}
