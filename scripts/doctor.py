"""Say what would run on this machine and what is missing. It changes and kills nothing."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("doctor")
