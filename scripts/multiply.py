"""Multiply the matrices of shards: products/SHARD.npy, and its receipt products/SHARD.json.

One shard (--shard, or --array-task in a task of an array job), or all that are missing (--all): by
a process on each GPU of this machine, by an array job, or by MPI ranks over several machines.
"""

import os
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from shardwise import cli, units
from shardwise.devices import choose
from shardwise.dispatch import apart, tally, task
from shardwise.errors import InputError
from shardwise.plan import memory
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.reduce import launch, rank_limits


def main(options: Namespace) -> int | None:
    """Compute one shard, or all that are missing."""
    if options.all:
        return _all(plans.load(options.plan), options)
    shard = options.shard
    if options.array_task:
        number = task.number(options.array_first or 0, os.environ)
        plan = plans.load(options.plan, number)
        shard = task.shard(plan, number)
        cli.log.info("this task computes shard %s; by hand: --shard %s", shard, shard)
    else:
        plan = plans.load(options.plan, shard)
        plans.expect(plan, plan.shard(shard).fingerprint, options.digest)
    if plan.function:
        code = apart.run(plan, partial(_compute, shard, options))
        if code:
            return code
    else:
        _compute(shard, options, plan)
    return cli.log.info("%s written", plan.results.receipt(shard))


def _compute(shard: str, options: Namespace, plan: Plan) -> None:
    from shardwise.multiply.job import run_shard

    run_shard(plan, shard, _memory(options), options.device_wait)


def _all(plan: Plan, options: Namespace) -> None:
    """Compute all shards that are missing, in the way that ``--dispatch`` names."""
    tries, wait = options.retries, options.device_wait
    retries = tally.DEFAULT_RETRIES if tries is None else tries
    limit = options.time_limit or memory.REDUCE_LIMIT_SECONDS
    if options.dispatch == "array":
        from shardwise.dispatch import array

        array.run(plan, options.recipe, options.array_limit, tries)
    elif options.dispatch == "mpi":
        from shardwise.dispatch import mpi

        comm = launch.get_world(options.ranks, "multiply")
        mpi.run(comm, plan, options.workers, retries, _memory(options), wait, limit)
    else:
        from shardwise.dispatch import pool

        pool.run(plan, retries, _memory(options), wait, options.devices or 0, limit)


def _memory(options: Namespace) -> int | None:
    return options.mem_mb * units.MIB if options.mem_mb else None


def _ranks(options: Namespace) -> Any:
    """mpi4py's ``MPI`` where ranks compute; None for all else, which are single processes."""
    _check(options)
    if options.dispatch != "mpi":
        return None
    if (options.ranks or 0) > rank_limits.ALWAYS and not launch.is_rank():
        shards = len(plans.load(options.plan).shards)
        work = rank_limits.limit_by_work(shards, f"the plan has {units.count(shards, 'shard')}")
        machine = rank_limits.limit_by_machine(options.launcher)
        rank_limits.refuse_more(options.ranks, "--ranks", work, machine)
    from shardwise.dispatch import mpi

    return mpi.ranks(options)


def _check(options: Namespace) -> None:
    """Refuse options that would do nothing, and fill in what some leave open."""
    way = (options.dispatch or "pool") if options.all else None
    owners = {
        "--shard": (options.shard is not None, ("digest",)),
        "--array-task": (options.array_task, ("array_first",)),
        "--all": (options.all, ("dispatch", "retries")),
        "--dispatch pool": (way == "pool", ("devices",)),
        "--dispatch mpi": (way == "mpi", ("workers", "ranks", "launcher")),
        "--dispatch pool or mpi": (way in ("pool", "mpi"), ("time_limit",)),
        "--dispatch array": (way == "array", ("array_limit", "recipe")),
    }
    for owner, (chosen, names) in owners.items():
        for name in names:
            if not chosen and getattr(options, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} means something with {owner} only")
    options.dispatch, options.workers = way, options.workers or "device"


def _add_which(arguments: ArgumentParser) -> None:
    which = arguments.add_mutually_exclusive_group(required=True)
    which.add_argument("--shard", help="id of one shard, such as 00007")
    which.add_argument(
        "--array-task",
        action="store_true",
        help="the shard whose number in the plan, from 0 on, is that of this task of an array job: "
        "SLURM_ARRAY_TASK_ID, or SGE_TASK_ID - 1, as Grid Engine counts from 1",
    )
    which.add_argument(
        "--all",
        action="store_true",
        help="all shards that are missing; the others finish where one fails, and the end names "
        "those that failed",
    )
    arguments.add_argument(
        "--array-first",
        type=cli.natural,
        metavar="N",
        help="with --array-task: the number of the shard of task 0 (under Grid Engine of task 1); "
        "left out: 0",
    )


def _add_task(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--mem-mb",
        type=cli.natural,
        metavar="N",
        help="host memory that the task may take, in MiB; with less than the plan says, fewer "
        "pieces of files are under way at once; 0, or left out: what the plan says. With --all, of "
        "all tasks of a machine together",
    )
    arguments.add_argument(
        "--device-wait",
        type=cli.seconds,
        metavar="SECONDS",
        help="how long to wait for a free GPU, counted from the last time that one changed hands; "
        f"then the task ends with 75; left out: {choose.JOB_WAIT_SECONDS:.0f} in a job of Slurm "
        f"or Grid Engine, whose run time is limited, {choose.WAIT_SECONDS:.0f} elsewhere and "
        "behind tasks of the same job",
    )


def _add_all(arguments: ArgumentParser) -> None:
    group = arguments.add_argument_group("with --all")
    group.add_argument(
        "--dispatch",
        choices=("pool", "array", "mpi"),
        help="who computes: a process on each GPU of this machine (pool, also where this is left "
        "out; one process where there is none), the tasks of an array job that this command "
        "submits and waits for, or MPI ranks",
    )
    group.add_argument(
        "--retries",
        type=cli.natural,
        metavar="N",
        help="tries after the first of one shard; what ended with 1, 2 or 3 is not tried again; "
        f"left out: {tally.DEFAULT_RETRIES}, with --dispatch array what the recipe says",
    )
    group.add_argument(
        "--devices",
        type=cli.natural,
        metavar="N",
        help="pool: GPUs to use at most; 0, or left out: all that the scheduler or "
        "CUDA_VISIBLE_DEVICES names, else all of this machine",
    )
    group.add_argument(
        "--workers",
        choices=("device", "node"),
        help="mpi: a rank on each GPU (device, also where this is left out), or a rank on each "
        "node that works on all its GPUs",
    )
    cli.add_ranks(group, "one for each GPU of this machine, with --workers node one")
    arguments.set_defaults(launcher=None)  # so that `_check` sees where it is given
    group.add_argument(
        "--time-limit",
        type=cli.seconds,
        metavar="SECONDS",
        help="pool, mpi: how long a process may hang, stopped or in a driver, before it is killed "
        "and its shard tried again; and how long a rank may give no sign of life before all ranks "
        f"are ended with 75; inf: for ever; left out: {memory.REDUCE_LIMIT_SECONDS:.0f}",
    )
    group.add_argument(
        "--array-limit",
        type=cli.positive,
        metavar="N",
        help="array: tasks that run at once; left out: as many as the scheduler lets run",
    )
    group.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="array: what a task asks the scheduler for, as snakemake writes it from the profile",
    )


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    _add_which(arguments)
    cli.add_digest(arguments)
    _add_task(arguments)
    _add_all(arguments)
    cli.run(main, arguments, mpi=_ranks)
