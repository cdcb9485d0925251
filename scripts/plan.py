"""Write plan.tsv: which matrices each shard holds, from the headers of the input alone."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("plan")
