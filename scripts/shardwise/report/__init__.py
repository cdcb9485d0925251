"""The page on a run, ``report.html``: one file that any browser opens without a network."""

from shardwise.report.page import render, write

__all__ = ["render", "write"]
