"""Multiply the matrices of all shards without a product: start workers, and wait for them."""

from shardwise.command.__main__ import main

main("dispatch")
