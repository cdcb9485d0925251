"""Decides which worker computes what, and what happens after each failure.

It knows neither processes nor pipes: events go in, orders come out. Both the pool of one node and
the ranks of several (`mpi.py`) follow it.
"""

import logging
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from shardwise.dispatch.dealer import Dealer
from shardwise.dispatch.events import Event, Order
from shardwise.dispatch.run_time import RunTime
from shardwise.dispatch.tally import Tally
from shardwise.errors import InputError, ShardwiseError, TryAgain
from shardwise.plan.plan import Plan

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Pause between two checks of what only time changes; events are handled as they come."""

_BLAMES = 2  # shards that fail on a device, with no success between, before it is left out

_LAST_BLAMES = 4
"""The same for the last device: without it nothing is computed, and it may be the shards' fault."""

_START_DEATHS = 2  # processes of a worker that may die in a row before it has a device

_NO_DEVICE = "the CPU"

_CODES = {2: InputError, 1: ShardwiseError}
"""What keeps a worker from starting, except for busy devices."""


@dataclass
class _WorkerState:
    """A worker: its shards in order, since when it has had the first, whether it wants another.

    It writes the one ``behind``, computes the next, and has begun to read the last.
    """

    where: str
    device: str | None = None
    joined: bool = False
    wants: bool = False
    deaths: int = 0
    since: float = 0.0
    shards: list[str] = field(default_factory=list)
    behind: str | None = None

    @property
    def computed(self) -> str | None:
        """The shard that it computes, or else writes."""
        first = (shard for shard in self.shards if shard != self.behind)
        return next(first, self.shards[0] if self.shards else None)

    def __str__(self) -> str:
        return f"{self.device or _NO_DEVICE} of {self.where}"


class Leader:
    """Hands out shards, has failed ones tried again, replaces workers, leaves out bad devices."""

    def __init__(self, plan: Plan, tally: Tally, run_time: RunTime | None = None) -> None:
        self._tally, self._run_time = tally, run_time or RunTime(None)
        self._dealer = Dealer({shard: plan.shard(shard).bytes for shard in tally.waiting})
        self._workers: dict[Hashable, _WorkerState] = {}
        self._blamed: dict[str, list[str]] = {}
        self._failed_on: dict[str, set[str]] = {}
        self._left_out: dict[str, str] = {}
        self._refusals: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do, nobody to do it, or no time."""
        return self._tally.ended or not self._workers or (self.late and not self._tally.running)

    @property
    def late(self) -> bool:
        """Whether no further shard fits into the run time of this job."""
        return not self._run_time.suffices(1)

    def expect(self, worker: Hashable, node: str) -> None:
        """Count on a worker whose process was started on a node."""
        self._workers[worker] = _WorkerState(node)

    def act(self, events: Iterable[Event], now: float) -> list[Order]:
        """The orders that follow from events and from time; also to be called without events."""
        orders = []
        for event in events:
            worker = self._workers.get(event.worker)
            if worker is not None:  # else its last words, after it was given up
                orders += self._take(event, worker, now)
        return orders + self._deal(now)

    def finish(self) -> None:
        """Return where all shards are whole.

        Raises
        ------
        ShardwiseError
            After a line on each shard that failed, and on what kept all workers from continuing.
        """
        nobody = self._nobody()
        if nobody:
            log.error("%s", nobody)
        try:
            self._tally.finish()
        except TryAgain as error:
            raise (nobody or self._out_of_time(error)) from None

    # What came.

    def _take(self, event: Event, worker: _WorkerState, now: float) -> list[Order]:
        if event.kind == "ready":
            return self._ready(event, worker)
        cannot_go_on = event.kind == "failed" and event.shard is None
        if event.kind == "died" or (cannot_go_on and worker.joined):
            return self._died(event, worker)
        if cannot_go_on:
            self._refusals[event.reason] = event.code or TryAgain.exit_code
            self._tally.note(f"a worker on {worker.where} cannot begin: {event.reason}")
            return self._give_up(event.worker)
        if event.kind == "failed":
            return self._failed(event, worker)
        if event.kind == "done":
            self._blamed.pop(worker.device, None)
            self._run_time.learn(now - worker.since)
            worker.since = now
            self._dealer.done(event.worker, event.shard, now)
            self._tally.done(event.shard)
            self._next(worker, event.shard)
        elif event.kind == "read" and worker.shards[-1:] == [event.shard]:  # else it comes too late
            worker.wants = True
        elif event.kind == "queued" and event.shard in worker.shards:
            worker.behind = event.shard
            if worker.computed != event.shard:
                self._tally.began(worker.computed, str(worker))
        return []

    def _ready(self, event: Event, worker: _WorkerState) -> list[Order]:
        if event.device in self._left_out:  # it waited for any device, and got the bad one
            return [self._restart(event.worker)]
        worker.device, worker.deaths = event.device, 0
        worker.joined = worker.wants = True
        self._dealer.join(event.worker)
        return []

    def _failed(self, event: Event, worker: _WorkerState) -> list[Order]:
        again = self._tally.failed(event.shard, event.code, event.reason)
        if event.suspect:
            return self._replace(event, worker, again)
        self._return(event.shard, again)
        self._next(worker, event.shard)
        return []

    def _died(self, event: Event, worker: _WorkerState) -> list[Order]:
        if worker.computed:
            again = self._tally.failed(worker.computed, event.code, event.reason)
            return self._replace(replace(event, shard=worker.computed), worker, again)
        worker.deaths += 1
        if worker.deaths < _START_DEATHS:
            return self._replace(event, worker, False)
        self._refusals[event.reason] = TryAgain.exit_code
        self._tally.note(f"a worker on {worker.where} keeps dying: {event.reason}")
        return self._give_up(event.worker)

    def _next(self, worker: _WorkerState, ended: str) -> None:
        """Let a worker turn to the shard that it was given ahead, or want one."""
        worker.shards.remove(ended)
        if worker.computed:
            self._tally.began(worker.computed, str(worker))
        else:
            worker.wants = True

    # What follows.

    def _deal(self, now: float) -> list[Order]:
        """Assign shards to the workers that want one, first to those that have none."""
        orders = []
        for name, worker in sorted(self._workers.items(), key=lambda item: len(item[1].shards)):
            fits = worker.wants and self._run_time.suffices(len(worker.shards) + 1)
            shard = self._dealer.ask(name, now) if fits else None
            if shard is not None:
                worker.wants = False
                worker.shards.append(shard)
                if len(worker.shards) == 1:
                    worker.since = now
                    self._tally.began(shard, str(worker))
                orders.append(Order(name, "assign", shard))
        return orders

    def _replace(self, event: Event, worker: _WorkerState, again: bool) -> list[Order]:
        """Stop using a worker: replace it, or leave out its device."""
        self._leave(event.worker, worker)
        for shard in worker.shards:
            if shard == event.shard:
                self._return(shard, again)
            else:  # it is not to blame
                self._tally.back(shard)
                self._dealer.again(shard, last=False)
        if worker.device and event.barred:
            return self._leave_out(event, worker, event.reason)
        blamed = worker.device and event.suspect and event.shard
        if blamed and self._blame(worker.device, event.shard):
            why = f"shard after shard failed on it, the last one because: {event.reason}"
            return self._leave_out(event, worker, why)
        return [self._restart(event.worker)]

    def _leave_out(self, event: Event, worker: _WorkerState, why: str) -> list[Order]:
        """Let no worker take this device any more."""
        self._left_out[worker.device] = event.reason
        self._tally.note(f"{worker} is left out: {why}")
        return self._give_up(event.worker)

    def _return(self, shard: str, again: bool) -> None:
        """A shard has failed: let it wait behind all others, or never be tried again."""
        if again:
            self._dealer.again(shard)
        else:
            self._dealer.drop(shard)

    def _blame(self, device: str, shard: str) -> bool:
        """Whether a failure was one too many; shards that failed elsewhere too do not count."""
        self._failed_on.setdefault(shard, set()).add(device)
        blamed = self._blamed.setdefault(device, [])
        blamed.append(shard)
        count = len({name for name in blamed if self._failed_on[name] == {device}})
        return count >= (_BLAMES if len(self._workers) > 1 else _LAST_BLAMES)

    def _restart(self, name: Hashable) -> Order:
        old = self._workers[name]
        self._workers[name] = _WorkerState(old.where, deaths=old.deaths)
        return Order(name, "restart", without=tuple(self._left_out))

    def _give_up(self, name: Hashable) -> list[Order]:
        self._leave(name, self._workers.pop(name))
        return [Order(name, "retire")]

    def _leave(self, name: Hashable, worker: _WorkerState) -> None:
        if worker.joined:
            self._dealer.leave(name)
            worker.joined = False

    def _out_of_time(self, error: TryAgain) -> TryAgain:
        """The error to report for shards that are left."""
        if not self.late or not self._tally.waiting:
            return error
        return TryAgain(f"the run time of this job is nearly up; the next one continues: {error}")

    def _nobody(self) -> ShardwiseError | None:
        """Why shards wait and nobody computes them."""
        if self._workers or self._tally.ended:
            return None
        devices_out = [f"{device} ({reason})" for device, reason in self._left_out.items()]
        words = list(self._refusals)
        if devices_out:
            words.append(f"left out, as shards failed there: {'; '.join(devices_out)}")
        codes = self._refusals.values()
        error = next((_CODES[code] for code in _CODES if code in codes), TryAgain)
        return error(f"no device is left to compute on: {'; '.join(words)}")


class Obedient(Protocol):
    """A crew, or those of all ranks as one."""

    def poll(self, timeout: float) -> list[Event]:
        """The events since the last call; waits for some, up to a time."""

    def obey(self, order: Order) -> None:
        """Carry out an order."""


def lead(crew: Obedient, leader: Leader, tally: Tally) -> None:
    """Pass events and orders until nothing is left to do."""
    orders = leader.act([], time.monotonic())
    while not leader.ended:
        for order in orders:
            crew.obey(order)
        tally.report()
        orders = leader.act(crew.poll(POLL_SECONDS), time.monotonic())
