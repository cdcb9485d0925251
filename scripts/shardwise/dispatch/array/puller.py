"""A task of an array that has more shards than tasks: it computes shard after shard.

It is a pool of one device whose shards come from claims. It leaves once no block is left, or once
its run time may not suffice for another shard. How each shard ended that it leaves unfinished, a
mark says, which the dispatch reads.
"""

import logging
import os
import signal
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

from shardwise import errors, host
from shardwise.dispatch.array import journal, task
from shardwise.dispatch.array.claims import Claims
from shardwise.dispatch.crew import Crew
from shardwise.dispatch.events import Limits
from shardwise.dispatch.leader import Leader, lead
from shardwise.dispatch.run_time import of_this_job
from shardwise.dispatch.tally import Tally
from shardwise.errors import InputError, TryAgain
from shardwise.plan.plan import Plan
from shardwise.records import missing

log = logging.getLogger(__name__)


def run(plan: Plan, name: str, limits: Limits) -> None:
    """Be this task of an array: compute the shards that it claims, to the last or to its time.

    Parameters
    ----------
    name
        Of the array, in the journal.
    limits
        Of the process that computes.

    Raises
    ------
    InputError
        Outside of such a task, or where no such array was noted.
    ShardwiseError
        Where a shard failed, after all others; or where this task cannot compute.
    """
    array = next((a for a in journal.noted(plan.results) if a.name == name), None)
    if array is None:
        raise InputError(f"{plan.results.arrays} names no array {name}: nothing to take part in")
    index = task.index(os.environ)
    marks = task.Marks(plan.results, array)
    tally = _TaskTally(plan, marks)
    share = Share(plan, Claims(plan.results, array), index, tally)
    share.resume()
    if not share.claim():
        log.info("no shard is left for this task of the array")
        return
    with _leaving(tally), _ignoring_warnings():
        run_time = of_this_job(limits.run_time)
        leader = Leader(plan, tally, share, run_time)
        with Crew(plan.results.plan, 1, limits, function=plan.function) as crew:
            signal.signal(signal.SIGUSR1, run_time.close)
            signal.signal(signal.SIGUSR2, errors.terminate)
            leader.expect(0, host.node())
            lead(crew, leader, tally)
        if leader.late:
            log.info("the run time is nearly up: %d shards go back", len(tally.waiting))
            tally.leave_to_others(tally.waiting)
        leader.finish()


class _TaskTally(Tally):
    """Counts the shards that one task has claimed, and marks those that it does not finish."""

    _LOST_WORDS = "whether another task tries it again, the dispatch decides"

    def __init__(self, plan: Plan, marks: task.Marks) -> None:
        super().__init__(plan, [], retries=0)
        self.marks = marks

    def add(self, shards: Iterable[str]) -> None:
        """Count shards that were claimed."""
        self._waiting |= dict.fromkeys(shards)

    def leave_to_others(self, shards: Iterable[str], code: int = 0) -> None:
        """Forget shards that are not finished: they were given up, or failed with a code."""
        for shard in shards:
            self._leave(shard)
            self.marks.leave(shard, code)

    def failed(self, shard: str, code: int | None, reason: str) -> bool:
        """Mark a shard that has failed; whether it is tried again, the dispatch decides."""
        again = super().failed(shard, code, reason)
        self.marks.leave(shard, TryAgain.exit_code if code is None else code)
        return again

    def _line(self) -> str:
        counts = {"done": self.whole, "running": self.running, "failed": self.lost,
                  "waiting": self._waiting}  # fmt: skip
        words = [f"{len(some)} {name}" for name, some in counts.items() if some]
        return f"shards of this task: {', '.join(words) or 'none'}"


class Share:
    """The shards that one task claims, dealt to its only worker as a `Dealer` deals them."""

    def __init__(self, plan: Plan, claims: Claims, index: int, tally: _TaskTally) -> None:
        self._ids, self._plan = list(plan.shards), plan
        self._claims, self._index, self._tally = claims, index, tally
        self._waiting: deque[str] = deque()
        self._away: list[str] = []

    def resume(self) -> None:
        """Go on with what this very task had claimed before its scheduler began it anew."""
        mine = (claim for claim in self._claims.news() if claim.index == self._index)
        shards = [self._ids[number] for claim in mine for number in claim.numbers]
        self._add(
            shard
            for shard in shards
            if self._tally.marks.code(shard) is None and not missing.is_whole(self._plan, shard)
        )

    def claim(self) -> bool:
        """Whether a shard waits here, be it one that is claimed now."""
        if not self._waiting and (claim := self._claims.claim(self._index)):
            self._add(self._ids[number] for number in claim.numbers)
        return bool(self._waiting)

    def _add(self, shards: Iterable[str]) -> None:
        new = list(shards)
        self._waiting += new
        self._tally.add(new)

    # As a dealer.

    def join(self, worker: Hashable) -> None:
        """Begin a worker, the first or one that takes its place."""

    def leave(self, worker: Hashable) -> list[str]:
        """Forget the worker; each of the shards that it had needs an `again` or a `drop`."""
        return list(self._away)

    def ask(self, worker: Hashable, now: float) -> str | None:
        """The next shard; None where none is left."""
        if not self.claim():
            return None
        self._away.append(self._waiting.popleft())
        return self._away[-1]

    def done(self, worker: Hashable, shard: str, now: float) -> None:
        """Note that the worker has ended a shard."""
        self._away.remove(shard)

    def again(self, shard: str, last: bool = True) -> None:
        """Let a shard that was dealt wait once more."""
        self._away.remove(shard)
        self._waiting.appendleft(shard)

    def drop(self, shard: str) -> None:
        """Forget a shard that was dealt: it has failed."""
        self._away.remove(shard)


@contextmanager
def _ignoring_warnings() -> Iterator[None]:
    """Have processes that start here ignore the signals by which schedulers warn before the end.

    Slurm sends SIGUSR1 where a user asks for it; Grid Engine's -notify sends SIGUSR2 and kills.
    """
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _leaving(tally: _TaskTally) -> Iterator[None]:
    """Leave a mark on each shard that was claimed and is not whole, however this ends.

    Where this task could compute nothing, all have failed; else those that did not fail themselves
    were given up.
    """
    code = 0
    try:
        yield
    except errors.ShardwiseError as error:
        code = 0 if tally.whole or tally.lost else error.exit_code
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # a second one must not cut this short
        tally.leave_to_others([*tally.waiting, *tally.running], code)
