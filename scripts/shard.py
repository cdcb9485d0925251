"""Copy the matrices of one shard into a file of their own: shards/SHARD.npy."""

from argparse import Namespace

from shardwise import cli
from shardwise.multiply import copy
from shardwise.plan import plan as plans


def main(options: Namespace) -> None:
    """Materialize one shard."""
    plan = plans.load(options.plan, options.shard)
    plans.expect(plan, plan.shard(options.shard).matrices, options.digest)
    copy.materialize(plan, options.shard)
    cli.log.info("%s written", plan.results.shard(options.shard))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments, shard=True)
    cli.add_digest(arguments)
    cli.run(main, arguments)
