"""Multiply the matrices of all shards that have no product yet: start workers, wait for them."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("dispatch")
