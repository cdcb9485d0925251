"""Copy the matrices of one shard into a file of their own: shards/SHARD-KEY.npy."""

from shardwise.command.__main__ import main

main("shard")
