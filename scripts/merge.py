"""Add the sums of finished results folders, and write OUT/sum.npy, mean.npy and summary.json."""

from shardwise.command.__main__ import main

main("merge")
