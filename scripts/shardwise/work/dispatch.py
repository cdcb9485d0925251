"""What the options of ``dispatch`` and ``work`` mean: who computes, and with what."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence

from shardwise import host
from shardwise.devices import choose
from shardwise.mpi import launch
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.processes import contain
from shardwise.records import failures
from shardwise.units import MIB
from shardwise.work import ranks, rounds, slurm
from shardwise.work.array import Array
from shardwise.work.pool import Pool
from shardwise.work.run_time import RunTime


def run(options: Namespace) -> int:
    """Compute all missing shards in the way that ``--dispatch`` names, or be one of its ranks."""
    plan = plans.load(options.plan)
    if options.round:  # a rank, which starts its workers; failure files say what failed
        launch.start_ranks(options)
        seats, beside = ranks.own_seats(plan.settings.backend, options.workers)
        _pool(plan, options, seats, beside).run(options.round)
        return 0
    try:
        if options.dispatch == "array":
            own = Array(plan, options.request, options.array_tasks, options.array_limit)
            rounds.run(plan, own.retries, own.most, own.run, lost=True)
        elif options.dispatch == "mpi":
            _mpi(plan, options)
        else:
            usable = choose.workers(plan.settings.backend, failures.barred(plan.results))
            _rounds(plan, options, options.retries, range(min(usable, options.devices or usable)))
    except Exception as error:
        rounds.note(plan, error)
        raise
    return 0


def _rounds(plan: Plan, options: Namespace, retries: int, seats: Sequence[int | None]) -> None:
    """Compute all missing shards by workers of this node."""
    rounds.run(plan, retries, len(seats), _pool(plan, options, seats, len(seats)).run)


def work(options: Namespace) -> int:
    """Be a worker; its exit code is the worst of its failures."""
    if options.parent:
        contain.end_with_parent(parent=options.parent)
    plan = plans.load(options.plan)
    if not options.round:
        _rounds(plan, options, 2, [options.seat])
        return 0
    # A restarted task keeps its job, and so its claims. Processes that share a job have a --name.
    who = options.name or host.job(os.environ) or _this_process()
    if plan.function and not options.parent:  # the function might end this process
        return _pool(plan, options, [options.seat], 1, who).run(options.round)
    from shardwise.work import worker  # here: it imports the packages that compute

    return worker.work(plan, who, RunTime(_end(options)), options)


def _end(options: Namespace) -> float | None:
    """When this job will be ended, in Unix time; None if no limit is known."""
    if until := getattr(options, "until", None):
        return float(until)
    own = time.time() + options.run_time if options.run_time else None
    return min(filter(None, (slurm.end_of_job(), own)), default=None)


def _this_process() -> str:
    return f"process {os.getpid()} on {host.node()}"


def _pool(
    plan: Plan, options: Namespace, seats: Sequence[int | None], beside: int, who: str = ""
) -> Pool:
    """Workers of this node, which share the memory: ``beside`` is how many the node has in all."""
    memory = options.memory and options.memory // max(1, beside) // MIB
    given = {"mem-mb": memory, "device-wait": options.device_wait, "until": _end(options)}
    shared = [f"--{name}={value}" for name, value in given.items() if value]
    words = [[*shared, *([] if seat is None else [f"--seat={seat}"])] for seat in seats]
    return Pool(plan, who or _this_process(), words)


def _mpi(plan: Plan, options: Namespace) -> None:
    backend, node = plan.settings.backend, options.workers == "node"
    count = options.ranks or launch.expected_ranks(otherwise=0)
    count = count or (1 if node else choose.workers(backend))
    argv, end = [*sys.argv, f"--ranks={count}"], _end(options)  # the last of two options counts

    def start(name: str) -> None:
        # A round gets the run time that earlier rounds have left.
        left = [f"--run-time={max(1.0, end - time.time())}"] if end else []
        ranks.start(count, options.launcher, [*argv, *left, f"--round={name}"])

    rounds.run(plan, options.retries, 4 * count, start)
