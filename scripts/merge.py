"""Add the sums of finished results folders, and write OUT/sum.npy, mean.npy and summary.json."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("merge")
