"""Multiply the matrices of one shard: products/SHARD-KEY.npy, and its receipt."""

from argparse import Namespace
from functools import partial

from shardwise import cli
from shardwise.dispatch import apart
from shardwise.dispatch.array import task
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan


def main(options: Namespace) -> int | None:
    """Compute the shard that is named, or that of this task of an array job."""
    shard = options.shard
    if options.by_index:
        number = task.number()
        plan = plans.load(options.plan, number)
        shard = task.shard(plan, number)
        cli.log.info("this task computes shard %s; by hand: --shard %s", shard, shard)
    else:
        plan = plans.load(options.plan, shard)
    plans.expect(plan, plan.shard(shard).key, options.key)
    compute = partial(_compute, shard, options)
    code = apart.run(plan, compute) if plan.function else compute(plan)
    return code or cli.log.info("%s written", plan.results.receipt(plan.shards[shard].name))


def _compute(shard: str, options: Namespace, plan: Plan) -> None:
    from shardwise.multiply.job import run_shard

    run_shard(plan, shard, options.memory, options.device_wait)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    which = arguments.add_mutually_exclusive_group(required=True)
    which.add_argument("--shard", help="id of the shard, such as 00007")
    words = "compute the shard of this task of an array job: the first task has the first shard"
    which.add_argument("--array-task", dest="by_index", action="store_true", help=words)
    cli.add_key(arguments)
    cli.add_task(arguments)
    cli.run(main, arguments)
