"""Sum all products with MPI; this command starts its MPI ranks itself."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("reduce")
