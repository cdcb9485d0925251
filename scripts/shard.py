"""Copy the matrices of one shard into a file of their own: shards/SHARD.npy."""

from argparse import Namespace

from shardwise import cli
from shardwise.multiply import copy
from shardwise.plan import plan as plans
from shardwise.records import failures


def main(options: Namespace) -> None:
    """Materialize one shard."""
    plan = plans.load(options.plan)
    name = plan.shard(options.shard).input_name
    plans.expect(plan, plan.shard(options.shard).input_key, options.key)
    with failures.noted(plan.results, f"copy-{name}", plan.results.log("shard", name)):
        copy.materialize(plan, options.shard)
    cli.log.info("%s written", plan.results.shard(name))


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments, shard=True)
    cli.add_key(arguments)
    cli.run(main, arguments)
