"""Write ledger.tsv: one row per shard, from the receipts, each checked against the plan."""

from argparse import Namespace

from shardwise import cli
from shardwise.plan import plan as plans
from shardwise.records import failures, ledger


def main(options: Namespace) -> None:
    """Check all receipts and write the ledger."""
    plan = plans.load(options.plan)
    with failures.noted(plan.results, f"ledger-{plan.key}", plan.results.log("ledger")):
        ledger.write(plan)
    cli.log.info("%s: %d shards are whole", plan.results.ledger, len(plan.shards))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    cli.run(main, arguments)
