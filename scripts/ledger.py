"""Write ledger.tsv: one row per shard, from the receipts, each checked against the plan."""

from shardwise.command.__main__ import main

main("ledger")
