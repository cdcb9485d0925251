"""The worker: a process that keeps one device, and computes the shards that it claims.

One thread computes; meanwhile a second begins to read the next shard, and a third writes what is
left of the previous one. A worker never imports mpi4py.
"""

import gc
import logging
import os
import signal
import time
import traceback
from argparse import Namespace
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from shardwise import errors
from shardwise.devices import choose
from shardwise.errors import DeviceFailed, TryAgain
from shardwise.files import commit
from shardwise.multiply.job import Session, ShardJob
from shardwise.plan.plan import Plan, Shard
from shardwise.processes import contain
from shardwise.records import failures
from shardwise.records.store import WORKER, Store
from shardwise.work import claims
from shardwise.work.pool import heard, heed

log = logging.getLogger(__name__)

_SLACK = 1.25  # another shard is expected to take at most this many times the longest one so far
_LEAVE_SECONDS = 30.0  # to start and end: schedulers kill without a second warning


def work(plan: Plan, end: float | None, options: Namespace) -> int:
    """Compute shards of a round, until Unix time ``end``; return the worst code of failures."""
    heed()
    signal.signal(signal.SIGUSR2, errors.terminate)
    if plan.function:  # the function may do anything to this process
        plan = plan.anchored(Path.cwd())
        contain.adopt()
        os.dup2(2, 1)  # what the function prints goes to stderr
    store = Store(plan)
    own = claims.Claims(store, claims.load(plan, options.round), os.getpid())
    try:
        with store.attempt(WORKER, choose.taken_uuid):
            if not suffices(end):
                raise TryAgain("the run time of this job is too short to begin a shard")
            session = Session(plan, options.memory, options.device_wait, options.seat)
        return ShardLoop(session, own, end).run()
    except errors.Terminated as error:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # a second one must not cut this short
        errors.explain(error)
    finally:
        commit.abandon()
        own.give_back()
    logging.shutdown()
    contain.sweep()  # it has children only if a user's function has left some
    os._exit(128 + signal.SIGTERM)  # shards that were begun ahead must not delay it


def suffices(end: float | None, longest: float = 0.0, shards: int = 1) -> bool:
    """Whether a device can compute some shards before Unix time ``end``, one after another.

    ``longest`` is the time of its longest shard so far; before that, a job with an end begins one.
    """
    if heard or end is None:
        return not heard
    enough = time.time() + _SLACK * longest * shards + _LEAVE_SECONDS <= end
    return enough and (shards == 1 or longest > 0)


_Begun = tuple[Shard, ShardJob | Exception]  # or what kept it from beginning


class ShardLoop:
    """Computes one shard, while other threads begin the next and finish the one before."""

    def __init__(self, session: Session, own: claims.Claims, end: float | None) -> None:
        self._plan, self._session, self._claims = session.plan, session, own
        self._end, self._longest = end, 0.0  # the time of the longest shard so far
        self._ahead, self._behind = ThreadPoolExecutor(1, "ahead"), ThreadPoolExecutor(1, "behind")
        self._next: Future[_Begun | None] | None = None
        self._last: Future[None] | None = None
        self._codes = set[int]()  # of the shards that failed here
        self._device_failed = False  # it can no longer be used

    def run(self) -> int:
        """Compute until no shard is left, time is nearly up or the device fails; the worst code."""
        began = time.monotonic()
        while True:
            ahead, self._next = self._next, None
            begun = (ahead.result() if ahead else None) or self._begin(1)
            if self._device_failed or not begun:
                break
            # After compiling CUDA kernels, SIGTERM no longer interrupts a wait: restore that.
            signal.siginterrupt(signal.SIGTERM, True)
            self._compute(*begun)
            # With the wait for its copy.
            self._longest = max(self._longest, time.monotonic() - began)
            began = time.monotonic()
        self._settle()
        if not suffices(self._end, self._longest):
            log.info("the run time is nearly up")
        return claims.worst(self._codes)

    def _begin(self, shards: int) -> _Begun | None:
        """Claim and begin a shard, if the run time suffices for this many."""
        enough = suffices(self._end, self._longest, shards)
        if self._device_failed or not enough or (claimed := self._claims.next()) is None:
            return None
        shard = self._plan.shards[claimed]
        try:
            return shard, ShardJob(self._session, claimed).begin()
        except Exception as error:
            return shard, error

    def _compute(self, shard: Shard, job: ShardJob | Exception) -> None:
        """Compute a shard on the device, and leave its last writes to the thread behind."""
        try:
            if isinstance(job, Exception):
                raise job
            again = failures.count_starts(self._plan.results.starts(shard.name)) > 0
            if again:  # it may have killed its worker, and may do so again:
                self._settle()  # the shard behind must not be lost with it
            job.compute((lambda: None) if again else self._coming)
        except Exception as error:
            self._settle()  # first the shard behind
            self._failed(shard, error)
        else:
            self._settle()
            self._last = self._behind.submit(self._finish, shard, job)

    def _coming(self) -> ShardJob | None:
        """The next shard, which the first call begins in a thread; None until it has begun."""
        self._next = self._next or self._ahead.submit(self._begin, 2)
        if not self._next.done() or self._next.exception():
            return None
        _, job = self._next.result() or (None, None)
        return job if isinstance(job, ShardJob) else None

    def _settle(self) -> None:
        """End what a user's function has left, and wait for the shard behind, the previous one."""
        if self._plan.function:
            contain.sweep()
        if self._last is not None:
            self._last.result()

    def _finish(self, shard: Shard, job: ShardJob) -> None:
        """End a shard: write the rest of what was computed, and its receipt."""
        try:
            job.finish()
        except Exception as error:
            return self._failed(shard, error)
        return log.info("%s written", self._plan.results.receipt(shard.name))

    def _failed(self, shard: Shard, error: Exception) -> None:
        """Write down why a shard has failed; a device that failed ends this worker."""
        code, words = errors.explain(error)
        self._device_failed |= isinstance(error, DeviceFailed)
        self._codes.add(code)
        path = self._plan.results.log("multiply", shard.name)
        with suppress(OSError):  # without room for a log the failure is told elsewhere
            # No more: a results folder that was renamed must not come back under its old name.
            path.parent.parent.mkdir(exist_ok=True)
            path.parent.mkdir(exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                own = traceback.format_exception(error) if code == errors.FAULT else [words, "\n"]
                file.write(errors.shown("".join(own)))
        uuid, attempt = self._session.device.get("uuid"), self._claims.attempt
        self._session.store.fail(shard.shard, error, uuid, attempt)
        gc.collect()  # tracebacks of the failure keep memory of the device alive
