"""Check whether a results folder is whole, on any later day, on any machine. Change nothing."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("verify")
