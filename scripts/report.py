"""Write the page on a run, report.html: what was computed, if it is proven, where time went."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("report")
