"""Check whether a results folder is whole, on any later day and machine. It changes nothing."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("verify")
