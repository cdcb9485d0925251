"""A task of an array: it claims shards, and computes one after the other in a child process.

It claims shards (`claims`) once it has its device. A shard that the child does not finish gets a
mark: an exit code if the shard has failed, 0 if the task ends in an orderly way. If the child
dies, a new one continues after the shard that it was computing.
"""

import logging
import mmap
import os
import signal
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from shardwise import errors
from shardwise.dispatch.array import journal, task
from shardwise.dispatch.array.claims import Claims
from shardwise.dispatch.events import Limits
from shardwise.dispatch.run_time import RunTime, of_this_job
from shardwise.dispatch.schedulers.common import Array
from shardwise.errors import InputError, TryAgain
from shardwise.plan.plan import Plan, expect
from shardwise.processes import contain
from shardwise.records.logs import add_error
from shardwise.records.store import Store

log = logging.getLogger(__name__)

_DEATHS = 2  # children in a row that may die without a finished shard in between

_TERMINATED = 128 + signal.SIGTERM
_TERM_SECONDS = 1.0  # a SIGTERM that reached the child reaches this process within this time


def run(plan: Plan, name: str, limits: Limits) -> None:
    """Be this task of an array: compute shards until none is left or its run time is up.

    Parameters
    ----------
    name
        The array's, in the journal.
    limits
        Those of the process that computes.

    Raises
    ------
    InputError
        Outside of such a task, or if the journal has no such array.
    ShardwiseError
        If a shard failed, after all others; or if this task cannot compute, for example because
        the plan is not that of its array.
    """
    array = next((a for a in journal.noted(plan.results) if a.name == name), None)
    if array is None:
        raise InputError(f"{plan.results.arrays} names no array {name}: nothing to take part in")
    expect(plan, plan.facts.digest, array.digest)
    if plan.function:  # it may change the working directory
        plan = plan.anchored(Path.cwd())
    share = Share(plan, array, task.own_and_first_index()[0], RunTime(None))
    try:
        share.run_time = of_this_job(limits.run_time)
        signal.signal(signal.SIGUSR1, share.run_time.close)
        signal.signal(signal.SIGUSR2, errors.terminate)
        if not share.run_time.suffices(1):
            raise TryAgain("the run time of this task is too short to begin a shard")
        failures = _compute_share(share, limits)
    except BaseException:  # told to end: what is left, also from before a requeue, is for others
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # a second one must not cut this short
        share.leave()
        raise
    if failures:
        worst = next((code for code in (3, 2, 1) if code in failures), TryAgain.exit_code)
        raise errors.of_code(worst, failures[worst])


def _compute_share(share: "Share", limits: Limits) -> dict[int, str]:
    """Compute in child processes, one after another; the reasons of failures, by exit code."""
    failures: dict[int, str] = {}
    # A user's function may end its whole process group, so it gets one of its own. Without one the
    # child stays in ours, which Grid Engine stops to suspend a task.
    ways = {"forward": [signal.SIGUSR1], "session": share.plan.function is not None}
    deaths = 0
    while share.resume():
        if deaths == _DEATHS or not share.run_time.suffices(1):
            share.give_back()
            break
        before = share.whole
        ending = contain.run(partial(_compute, share, limits), **ways)
        if ending.result is not None:
            return failures | dict(ending.result)
        failures |= share.bury(ending.status)
        deaths = 1 if share.whole > before else deaths + 1
    else:
        log.info("no shard is left for this task of the array")
    return failures


def _compute(share: "Share", limits: Limits) -> list[tuple[int, str]]:
    """In the child: compute, and return why shards failed, by exit code."""
    from shardwise.dispatch import worker  # here: it loads the libraries that compute
    from shardwise.files import commit

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal: the parent handles it
    try:
        worker.compute(share.plan, share, worker.Logs(str(share.plan.results.plan)), limits)
    except errors.Terminated:
        commit.abandon()
        os._exit(_TERMINATED)
    except Exception as error:
        share.failures |= [errors.explain(error)]
    commit.abandon()  # shards that were begun ahead
    share.give_back()
    return list(share.failures.items())


class Share:
    """The shards that one task claims, as its child's `worker.Feed`."""

    def __init__(self, plan: Plan, array: Array, index: int, run_time: RunTime) -> None:
        self.plan, self.run_time = plan, run_time
        self._array, self._index, self._ids = array, index, list(plan.shards)
        self._marks = task.Marks(plan.results, array)
        self._claims = Claims(plan.results, array)
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._begun: list[str] = []
        self._since = 0.0
        self._busy = mmap.mmap(-1, 1)  # whether the child was given a shard; shared with the parent
        self.whole = 0  # how many of the claimed shards are whole, as `resume` saw last
        self.assigned: SimpleQueue[str | None] = SimpleQueue()
        self.failures: dict[int, str] = {}  # a reason for each exit code

    def resume(self) -> bool:
        """Take up claimed shards that have not ended; whether any shard is left to compute."""
        claimed = [self._ids[n] for claim in self._claims.of(self._index) for n in claim.numbers]
        left = [shard for shard in claimed if not Store(self.plan).is_whole(shard)]
        self.whole = len(claimed) - len(left)
        self._waiting = deque(shard for shard in left if self._marks.code(shard) is None)
        self._begun, self._busy[0] = [], 0
        return bool(self._waiting or self._claims.left())

    def give_back(self) -> None:
        """Leave unfinished shards to other tasks."""
        left = [*self._begun, *self._waiting]
        if not self.run_time.suffices(1):
            log.info("the run time is nearly up: %d shards are handed back", len(left))
        for shard in left:
            self._marks.leave(shard, 0)

    def leave(self) -> None:
        """Give back unfinished shards because the task is being ended.

        If its run time is up, the shard that it was computing has failed: it needs more time.
        """
        late = self._busy[0] and self.run_time.over
        self.resume()
        if self._waiting and late:
            self._fail(TryAgain.exit_code, "the run time of its task was too short for it")
        self.give_back()

    # In the child.

    def send(self, kind: str, shard: str | None = None, **facts: Any) -> None:
        """Record an event of the process that computes, and assign the next shard."""
        with self._lock:
            if kind in ("done", "failed"):
                self._end(shard, facts.get("code"), facts.get("reason", ""))
            idle = not self._begun and not facts.get("suspect")
            if idle or (kind == "read" and self._begun[-1:] == [shard]):
                self._assign()

    def _end(self, shard: str, code: int | None, reason: str) -> None:
        self._begun.remove(shard)
        now = time.monotonic()
        if code is None:
            self.run_time.learn(now - self._since)
        else:
            self._marks.leave(shard, code)
            self.failures[code] = reason
        self._since = now

    def _assign(self) -> None:
        """Assign a shard; if there is none and the process is idle, tell it so."""
        shard = None
        if self.run_time.suffices(len(self._begun) + 1):
            while not self._waiting and self._claim():
                pass
            shard = self._waiting.popleft() if self._waiting else None
        if shard is None:
            if not self._begun:
                self.assigned.put(None)
            return
        if not self._begun:
            self._since = time.monotonic()
        self._begun.append(shard)
        self._busy[0] = 1
        self.assigned.put(shard)

    def _claim(self) -> bool:
        """Claim a block, part of which another array may have computed; whether there was one."""
        try:
            claim = self._claims.claim(self._index)
        except OSError as error:  # kept here, as it may come up in any thread
            self.failures |= [errors.explain(error)]
            return False
        shards = [self._ids[number] for number in claim.numbers] if claim else []
        self._waiting += [shard for shard in shards if not Store(self.plan).is_whole(shard)]
        return claim is not None

    # In the parent again, once the child has died.

    def bury(self, status: int | None) -> dict[int, str]:
        """Mark the shard that a dead child was computing; why the child died, by exit code.

        Raises ShardwiseError if it had no shard.
        """
        if status == _TERMINATED:
            time.sleep(_TERM_SECONDS)
        words, code = f"its process {contain.words(status)}", TryAgain.exit_code
        if self.plan.function:
            words = f"product: your function {self.plan.function} {contain.words(status)}"
            code = InputError.exit_code if (status or 0) >= 0 else code
        busy = self._busy[0]
        self.resume()
        if not (busy and self._waiting):
            raise errors.of_code(code, words)
        self._fail(code, words)
        return {code: words}

    def _fail(self, code: int, words: str) -> None:
        """Mark the shard that the child was computing when it ended."""
        shard = task.last_begun(self.plan.results, self._waiting)
        self._waiting.remove(shard)
        log.warning("shard %s: %s", shard, words)
        add_error(self.plan.results.log("multiply", shard), words)
        self._marks.leave(shard, code)
