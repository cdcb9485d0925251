"""Who computes the missing shards, and with what, as options of ``dispatch`` and ``work`` say."""

import logging
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from shardwise import errors
from shardwise.devices import choose
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import list_names, place
from shardwise.mpi import launch, together
from shardwise.plan import plan as plan_file
from shardwise.plan.plan import Plan
from shardwise.processes import contain
from shardwise.records import failures, locks
from shardwise.records.failures import Failure
from shardwise.records.store import WORKER, Store
from shardwise.units import MIB
from shardwise.work import array, claims
from shardwise.work.pool import Pool, heard, heed

log = logging.getLogger(__name__)

_GRACE_SECONDS = 15.0  # for ranks to end


def run(options: Namespace) -> int:
    """Multiply the matrices of all shards that have no product yet: start workers, wait for them.

    If a shard fails, the others still finish, and the last lines name those that failed.
    """
    plan = plan_file.load(options.plan)
    if options.round:  # a rank, which starts its workers; failure files say what failed
        launch.start_ranks(options)
        seats, beside = together.own_seats(plan.settings.backend, options.workers)
        _pool(plan, options, seats, beside).run(options.round)
        return 0
    try:
        if options.dispatch == "array":
            if options.scheduler is None:
                raise InputError("an array needs --scheduler, and --job with what its tasks ask")
            start = partial(array.submit, plan, options)
            compute(plan, options.array_tasks or array.MOST_TASKS, start, again=True)
        elif options.dispatch == "mpi":
            _mpi(plan, options)
        else:
            usable = choose.workers(plan.settings.backend, failures.barred(plan.results))
            count = min(usable, options.devices or usable)
            compute(plan, count, _pool(plan, options, range(count), count).run)
    except Exception as error:  # write it down, unless the shards or a worker have done so
        store, elsewhere = Store(plan), locks.is_job_locked(plan.results.dispatching)
        if not elsewhere and not _failed(store, store.missing()):
            store.fail(WORKER, error)
        raise
    return 0


def work(options: Namespace) -> int:
    """Be a worker: take a device, and compute shards until none is left or the time is nearly up.

    Run by hand, it computes all missing shards; `dispatch` and the tasks of an array start several
    workers that share the shards. The exit code is the worst of its failures.
    """
    if options.parent:
        contain.end_with_parent(parent=options.parent)
    plan = plan_file.load(options.plan)
    if not options.round:
        compute(plan, 1, _pool(plan, options, [options.seat], 1).run)
        return 0
    if not options.parent:
        claims.forget_requeued(plan, options.round)
        if plan.function:  # it might end this process
            return _pool(plan, options, [options.seat], 1).run(options.round)
    from shardwise.work import worker  # here: it imports the packages that compute

    return worker.work(plan, _end(options), options)


def _end(options: Namespace) -> float | None:
    """When this job will be ended, in Unix time; None if no limit is known."""
    until = getattr(options, "until", None)
    return time.time() + options.run_time if options.run_time and not until else until


def _pool(plan: Plan, options: Namespace, seats: Sequence[int | None], beside: int) -> Pool:
    """Workers of this node, which share the memory: ``beside`` is how many the node has in all."""
    memory = options.memory and options.memory // max(1, beside) // MIB
    given = {"mem-mb": memory, "device-wait": options.device_wait, "until": _end(options)}
    shared = [f"--{name}={value}" for name, value in given.items() if value]
    words = [[*shared, *([] if seat is None else [f"--seat={seat}"])] for seat in seats]
    return Pool(plan, words)


def _mpi(plan: Plan, options: Namespace) -> None:
    backend, node = plan.settings.backend, options.workers == "node"
    count = options.ranks or launch.expected_ranks(otherwise=0)
    count = count or (1 if node else choose.workers(backend))
    argv = [*sys.argv, f"--ranks={count}"]  # the last of two options counts

    def start(name: str) -> None:
        words, variables = launch.call(count, options.launcher, [*argv, f"--round={name}"])
        variables |= {"SLURM_KILL_BAD_EXIT": "0"}  # a rank that dies must not end the others
        log.info("starting %d ranks: %s", count, shlex.join(words))
        process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL)
        try:
            heed(process.send_signal)
            process.wait()
        finally:
            contain.end([process], _GRACE_SECONDS)

    compute(plan, 4 * count, start)


def compute(plan: Plan, most: int, start: Callable[[str], object], again: bool = False) -> None:
    """Compute the missing shards in a round; raise the worst error if any is left.

    ``start`` starts at most ``most`` workers of the named round, and returns once all have ended.
    With ``again`` another round follows for shards whose workers were killed or out of time, as
    long as each round makes progress. All other tries are Snakemake's, or the user's.
    """
    store = Store(plan)
    heard.clear()
    heed()
    busy = "its shards are being computed by another process; let it end, then try again"
    with locks.take_lock(plan.results.dispatching, f"{plan.results.root}: {busy}"):
        store.forget(WORKER)  # of an earlier try
        shards, before = _to_try(store), sys.maxsize
        failed = store.failed(shards).values()
        attempt = 1 + max((failure.attempt for failure in failed), default=0)
        while shards and len(shards) < before and not heard:
            log.info("%d of %d shards have no products yet", len(shards), len(plan.shards))
            store.withdraw()
            name = claims.begin(plan, shards, min(most, len(shards)), attempt)
            try:
                start(name)
            finally:
                claims.end(plan.results)
            before, shards = len(shards) if again else 0, _to_try(store, attempt)
        _finish(store)


def _to_try(store: Store, last: int = sys.maxsize) -> list[str]:
    """The missing shards that may become whole; ``last`` is the number of a shard's last try."""
    # Those that were never begun come first: any of the others may have killed its worker.
    begun, shards = list_names(store.results.starts("any").parent), store.plan.shards
    left = claims.with_hope(store, store.missing(), last)
    return sorted(left, key=lambda shard: f"{place(shards[shard].name)}.starts" in begun)


def _finish(store: Store) -> None:
    """Raise the worst error of a shard or a worker in this run if shards are missing."""
    if not (missing := store.missing()):
        store.forget(WORKER)  # others did its part
        log.info("every shard has its product")
        return
    failed = _failed(store, missing)
    words = f"of {len(store.plan.shards)} shards {len(missing)} were not computed"
    worst = claims.worst({failure.code for failure in failed})
    for failure in failed:
        if failure.code == worst:
            raise errors.of_code(worst, f"{words}; {failure.name}: {failure.reason}")
    logs = store.results.array_folder(failures.this_run())
    where = f"; the logs of the tasks are in {logs}" if logs.exists() else ""
    raise TryAgain(f"{words} (cancelled, killed or out of time){where}")


def _failed(store: Store, missing: Sequence[str]) -> list[Failure]:
    """The failures of shards in this run; if there are none, that of a worker's beginning."""
    return list((store.failed(missing) or store.failed([WORKER])).values())
