"""Be a worker: take a device, and compute shards until none is left or the time is nearly up."""

from shardwise.command.__main__ import main

main("work")
