"""Sum all products with MPI; the command starts its ranks itself."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("reduce")
