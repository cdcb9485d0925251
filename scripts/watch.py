"""Watch a run from any shell that sees its results folder, wherever its jobs run."""

from shardwise.command.__main__ import main

main("watch")
