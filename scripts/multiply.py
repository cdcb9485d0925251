"""Multiply the matrices of one shard: products/SHARD-KEY.npy, and its receipt."""

from argparse import Namespace
from functools import partial

from shardwise import cli
from shardwise.devices import choose
from shardwise.multiply import apart
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan, Shard
from shardwise.records import failures
from shardwise.records.store import Store


def main(options: Namespace) -> int | None:
    """Compute the shard that is named; one that its run has seen fail for good fails again."""
    plan = plans.load(options.plan)
    shard = plan.shard(options.shard)
    plans.expect(plan, shard.key, options.key)
    failures.refuse_again(plan.results, shard.name)
    Store(plan).withdraw()
    compute = partial(_compute, shard, options)
    if plan.function:
        apart.run(plan, shard, compute)
    else:
        compute(plan)
    return cli.log.info("%s written", plan.results.receipt(shard.name))


def _compute(shard: Shard, options: Namespace, plan: Plan) -> None:
    log = plan.results.log("multiply", shard.name)
    with failures.noted(plan.results, shard.name, log, choose.taken_uuid):
        from shardwise.multiply.job import run_shard

        run_shard(plan, shard.shard, options.memory, options.device_wait)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments, shard=True)
    cli.add_key(arguments)
    cli.add_task(arguments)
    cli.run(main, arguments)
