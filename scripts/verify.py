"""Check whether a results folder is whole, on any later day, on any machine. Change nothing."""

from shardwise.command.__main__ import main

main("verify")
