"""Multiply the matrices of one shard: products/SHARD.npy, and its receipt products/SHARD.json."""

import runpy
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from shardwise import cli
from shardwise.dispatch import apart
from shardwise.dispatch.array import task
from shardwise.errors import InputError
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.records import logs


def main(options: Namespace) -> int | None:
    """Compute the shard that is named, or that of this task of an array job."""
    shard = options.shard
    if options.array_task:
        number = task.number(options.array_first or 0)
        plan = plans.load(options.plan, number)
        shard = task.shard(plan, number)
        cli.log.info("this task computes shard %s; by hand: --shard %s", shard, shard)
    elif options.array_first is not None:
        raise InputError("--array-first applies only with --array-task")
    else:
        plan = plans.load(options.plan, shard)
    plans.expect(plan, plan.shard(shard).fingerprint, options.digest)
    compute = partial(_compute, shard, options)
    code = apart.run(plan, compute) if plan.function else compute(plan)
    return code or cli.log.info("%s written", plan.results.receipt(shard))


def _compute(shard: str, options: Namespace, plan: Plan) -> None:
    from shardwise.multiply.job import run_shard

    run_shard(plan, shard, options.memory, options.device_wait)
    if options.array_task:  # its log goes: what is said from here on, nobody reads
        logs.settle(plan.results, shard)


if __name__ == "__main__":
    if "--all" in sys.argv:
        sys.argv = [str(Path(__file__).with_name("dispatch.py")), *sys.argv[1:]]
        sys.argv.remove("--all")
        runpy.run_path(sys.argv[0], run_name="__main__")
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    which = arguments.add_mutually_exclusive_group(required=True)
    which.add_argument("--shard", help="id of the shard, such as 00007")
    which.add_argument("--array-task", action="store_true", help="that of this task of an array")
    which.add_argument("--all", action="store_true", help="all missing shards: as dispatch.py")
    words = "with --array-task: the shard of task 0 (of task 1 under Grid Engine); default: 0"
    arguments.add_argument("--array-first", type=cli.natural, metavar="N", help=words)
    cli.add_digest(arguments)
    cli.add_task(arguments)
    cli.run(main, arguments)
