"""Say what would run on this machine and what is missing. Change nothing, kill nothing."""

from shardwise.command.__main__ import main

main("doctor")
