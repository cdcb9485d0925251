"""Rounds of workers, for the process that starts them: which shards they get, and the outcome."""

import logging
import sys
from collections.abc import Callable, Collection

from shardwise import errors
from shardwise.errors import TryAgain
from shardwise.files.paths import list_names, place
from shardwise.plan.plan import Plan
from shardwise.records import failures, locks
from shardwise.records.store import Store, describe
from shardwise.work import claims, run_time

log = logging.getLogger(__name__)


def to_try(plan: Plan, last: int = sys.maxsize) -> tuple[list[str], int]:
    """The missing shards that may become whole by another try in this run, and which try that is.

    ``last`` is the number of a shard's last try. Shards that were never begun come first: any of
    the others may have killed its worker.
    """
    missing = Store(plan).missing()
    failed = claims.of_this_run(plan, missing)
    hopeless, begun = claims.hopeless(failed, last), list_names(plan.results.starts("any").parent)
    left = [shard for shard in missing if shard not in hopeless]
    attempt = 1 + max((failed[shard].attempt for shard in left if shard in failed), default=0)
    left.sort(key=lambda shard: f"{place(plan.shards[shard].name)}.starts" in begun)
    return left, attempt


def run(
    plan: Plan, retries: int, most: int, start: Callable[[str], object], lost: bool = False
) -> None:
    """Compute all missing shards, round by round; raise an error as `finish` does.

    ``start`` starts at most ``most`` workers of the named round, and returns once all have ended.
    Another round follows if a shard has failed that may be tried again, ``retries`` times at most.
    With ``lost`` it also follows if shards are missing that have not failed, as their workers were
    killed; unless more than ``retries`` rounds in a row made no progress, or one did not because
    the user has to act before a worker can begin.
    """
    run_time.heard.clear()
    run_time.heed()
    busy = (
        f"{plan.results.root}: its shards are being computed by another process; let it finish or "
        "end it, then run the same command again"
    )
    with locks.take_lock(plan.results.dispatching, busy):
        failures.forget(plan.results, claims.worker_failure(plan))  # of an earlier try
        (shards, attempt), idle = to_try(plan), 0
        last = attempt + retries
        while shards and not run_time.heard:
            log.info("%s", describe(plan, shards))
            Store(plan).withdraw()
            name = claims.begin(plan, shards, min(most, len(shards)), attempt)
            try:
                start(name)
            finally:
                claims.end(plan.results)
            before, tried = len(shards), attempt
            shards, attempt = to_try(plan, last)
            idle = 0 if len(shards) < before else idle + 1
            most_idle = 0 if any(map(failures.needs_user, _of_workers(plan))) else retries
            if attempt == tried and not (lost and idle <= most_idle):
                break
        finish(plan)


def finish(plan: Plan) -> None:
    """Return if no shard is missing; else raise the worst error of a shard in this run.

    If none failed, it raises that of a worker before its first shard, or TryAgain.
    """
    if not (missing := Store(plan).missing()):
        failures.forget(plan.results, claims.worker_failure(plan))  # others did its part
        log.info("%s", describe(plan, missing))
        return
    failed = claims.of_this_run(plan, missing)
    parts = [f"{len(failed)} failed"] if failed else []
    if left := len(missing) - len(failed):
        parts += [f"{left} were not computed (cancelled, killed or out of time)"]
    words = f"of {len(plan.shards)} shards {', '.join(parts)}"
    worst = claims.worst({failure.code for failure in failed.values()})
    for shard, failure in failed.items():
        if worst in (failure.code, TryAgain.exit_code):
            raise errors.of_code(worst, f"{words}; shard {shard}: {failure.reason}")
    for failure in _of_workers(plan):
        words = f"of {len(plan.shards)} shards {len(missing)} were not computed: {failure.reason}"
        raise errors.of_code(failure.code, words)
    logs = plan.results.array_folder(failures.this_run())
    raise TryAgain(f"{words}; the logs of the tasks are in {logs}" if logs.exists() else words)


def note(plan: Plan, error: Exception) -> None:
    """Write down why the shards were not computed, unless they or a worker have done so."""
    known = claims.of_this_run(plan, Store(plan).missing()) or _of_workers(plan)
    if not known and not locks.is_job_locked(plan.results.dispatching):  # by another process
        failures.note(plan.results, claims.worker_failure(plan), *errors.verdict(error))


def _of_workers(plan: Plan) -> Collection[failures.Failure]:
    """The failure of a worker of this run that could not begin, if there is one."""
    return failures.of_this_run(plan.results, [claims.worker_failure(plan)]).values()
