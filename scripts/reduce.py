"""Sum all products with MPI; this command starts its MPI ranks itself."""

from shardwise.command.__main__ import main

main("reduce")
