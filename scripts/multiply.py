"""Multiply the matrices of one shard: products/SHARD.npy, and its receipt products/SHARD.json."""

from argparse import Namespace

from shardwise import cli, planfile
from shardwise.multiply import run_shard


def main(options: Namespace) -> None:
    """Compute one shard."""
    plan = planfile.load(options.plan)
    run_shard(plan, options.shard)
    cli.log.info("%s written", plan.results.receipt(options.shard))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments, shard=True)
    cli.run(main, arguments)
