"""Multiply the matrices of one shard; write products/SHARD-KEY.npy and its receipt."""

from shardwise.command.__main__ import main

main("multiply")
