"""Write report.html: what a run computed, whether it is proven, and where the time went."""

from shardwise.command.__main__ import main

main("report")
