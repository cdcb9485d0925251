"""Write ledger.tsv: one row a shard, from the receipts, each checked against the plan."""

from argparse import Namespace

from shardwise import cli, ledger, planfile
from shardwise.errors import IntegrityError


def main(options: Namespace) -> None:
    """Check all receipts and write the ledger."""
    plan = planfile.load(options.plan)
    if options.digest not in (None, plan.facts["digest"]):
        raise IntegrityError(
            f"{options.plan} is not the plan of this config; remove it and run snakemake again"
        )
    ledger.write(plan)
    cli.log.info("%s: %d shards are whole", plan.results.ledger, len(plan.shards))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    arguments.add_argument("--digest", help="digest that the plan must have")
    cli.run(main, arguments)
