"""Watch a run from any shell that sees its results folder, while its jobs run anywhere."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("watch")
