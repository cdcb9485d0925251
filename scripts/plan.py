"""Write plan.tsv, which says which matrices each shard holds; read only the input's headers."""

from shardwise.command.__main__ import main

main("plan")
