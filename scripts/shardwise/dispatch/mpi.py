"""Ranks over nodes: each has worker processes of its own, and rank 0 hands out the shards.

Every rank starts the workers of its devices, passes their events to rank 0, and carries out its
orders. So rank 0 leads all workers as a pool leads those of one node. The workers know nothing of
MPI, and a rank never computes. Except for `reduce` the only importer of mpi4py, when it is needed.
"""

import dataclasses
import json
import logging
import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from shardwise import errors, host
from shardwise.devices import choose, grants
from shardwise.dispatch.crew import Crew, start_fork_server
from shardwise.dispatch.events import Event, Limits, Order
from shardwise.dispatch.leader import Leader, lead
from shardwise.dispatch.run_time import RunTime, of_this_job
from shardwise.dispatch.seats import Seat, View, seated, shown
from shardwise.dispatch.tally import Tally, holding
from shardwise.errors import ShardwiseError, TryAgain, of_code
from shardwise.mpi import launch
from shardwise.mpi.together import abort
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.records.store import Store, describe

log = logging.getLogger(__name__)

_SIGNS = 20  # signs of life within that time
_TAG = 1

_SHORTEST_SECONDS = 5e-4
_LONGEST_SECONDS = 2e-2
_SHARE = 0.05


def ranks(options: Namespace) -> Any:
    """The MPI of a rank, for `cli.run`; in a process that is none yet, start the ranks instead."""

    def fitting() -> int:
        return 1 if options.workers == "node" else choose.workers("auto")

    # Before MPI, so that nothing of it, not even its environment, reaches the workers.
    return launch.start_ranks(options, fitting, start_fork_server)


def run(comm: Any, plan: Plan, workers: str, retries: int, limits: Limits) -> None:
    """Compute all shards that are missing, over the ranks of a communicator; each rank calls this.

    ``workers`` is ``device`` or ``node``, as in :func:`seats.seated`; ``retries`` are tries after
    the first of a shard; the memory in ``limits`` is that of all workers of a node together.
    Raises ShardwiseError on every rank, if a shard is not whole in the end (see `Tally.finish`);
    TryAgain if another dispatcher works on these results, or no device is left.
    """
    views = _views(comm, plan)
    seats = seated(views, workers)
    seat = seats[comm.rank]
    beside = sum(other.workers for other in seats if other.node == seat.node)
    path, limits = plan.results.plan, limits.shared(beside)
    crew = Crew(path, seat.workers, limits, seat.share, plan.function)
    wire = Wire(comm, limits.hang)
    if comm.rank:
        _follow(wire, crew)
    else:
        with _ending(wire), holding(plan.results):
            for line in shown(views, seats):
                log.info("%s", line)
            _lead(wire, crew, seats, plan, retries, of_this_job(limits.run_time))


def _views(comm: Any, plan: Plan) -> list[View]:
    """What each rank sees of its node, by rank."""
    from mpi4py import MPI

    devices, granted, trouble = None, False, None
    if plan.settings.backend != "numpy" and choose.driver_cuda_version() is not None:
        try:
            barred = failures.barred(plan.results)
            devices = [d.uuid for d in choose.candidates() if d.uuid not in barred]
            grant = grants.read(os.environ)
            granted = grant is not None and grant.source != "lease"
        except TryAgain as error:
            devices, trouble = [], str(error)
    # The ranks of a node, whatever the placement: the first of them gives it its number.
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    number = node.allreduce(comm.rank, MPI.MIN)
    node.Free()
    return comm.allgather(View(number, host.node(), devices, granted, trouble))


def _lead(
    wire: "Wire", crew: Crew, seats: Sequence[Seat], plan: Plan, retries: int, run_time: RunTime
) -> None:
    """Rank 0: hand out the missing shards until each is whole or has failed for good."""
    # This gives signs of life, as the others hear nothing else before they begin.
    shards = Store(plan).missing(wire.received)
    log.info("%s", describe(plan, shards))
    if not shards:
        return
    tally = Tally(plan, shards, retries)
    leader = Leader(plan, tally, run_time=run_time)
    for rank, seat in enumerate(seats):
        for worker in range(seat.workers):
            leader.expect((rank, worker), seat.host)
    wire.tell_all("begin")
    with crew:
        lead(_Crews(wire, crew), leader, tally)
    leader.finish()


def _follow(wire: "Wire", crew: Crew) -> None:
    """Any other rank: carry out the orders of rank 0 until it reports the end, and end like it."""
    try:
        with ExitStack() as stack:
            code, text = _serve(wire, crew, stack)
    except (ShardwiseError, OSError) as error:
        wire.send(0, "failed", *errors.verdict(error))
        code, text = _end(wire)
    wire.send(0, "ended")
    wire.flush()
    if code:
        raise of_code(code, text)


def _serve(wire: "Wire", crew: Crew, stack: ExitStack) -> tuple[int, str]:
    """Pass messages between the workers and rank 0; return what it says at the end."""
    pause, restarts = _Pause(), Counter[int]()  # of the process of each worker
    while True:
        events = crew.poll(pause.seconds())
        for event in events:
            words = dataclasses.asdict(event)
            wire.send(0, "event", restarts[event.worker], words)
        messages = wire.received()
        for _, (kind, *words) in messages:
            if kind == "begin":
                stack.enter_context(crew)
            elif kind == "order":
                order = Order(*words)
                restarts[order.worker] += order.kind == "restart"
                crew.obey(order)
            elif kind == "end":
                return words[0], words[1]
        if events or messages:
            pause.again()


def _end(wire: "Wire") -> tuple[int, str]:
    """Wait for what rank 0 says at the end."""
    while True:
        for _, (kind, *words) in wire.received():
            if kind == "end":
                return words[0], words[1]
        time.sleep(_LONGEST_SECONDS)


class _Crews:
    """The workers of all ranks, as one crew; a worker's name is its rank and its number there."""

    def __init__(self, wire: "Wire", crew: Crew) -> None:
        self._wire, self._crew = wire, crew
        self._restarts = Counter[tuple[int, int]]()
        self._pause = _Pause()

    def poll(self, timeout: float) -> list[Event]:
        """The events of all ranks since the last call; waits for some, up to a time."""
        end = time.monotonic() + timeout
        while True:
            left = max(0.0, end - time.monotonic())
            events = [
                _of_rank(0, event) for event in self._crew.poll(min(left, self._pause.seconds()))
            ]
            messages = self._wire.received()
            for rank, (kind, *words) in messages:
                if kind == "event":
                    events += self._heard(rank, *words)
                elif kind == "failed":
                    raise of_code(words[0], words[1])
            if events or messages:
                self._pause.again()
            if events or not left:
                return events

    def _heard(self, rank: int, restarts: int, words: dict[str, Any]) -> list[Event]:
        """An event of another rank, unless its process was replaced while it was under way."""
        event = _of_rank(rank, Event(**words))
        return [event] if restarts == self._restarts[event.worker] else []

    def obey(self, order: Order) -> None:
        """Carry out an order, or have the rank of its worker do so."""
        rank, number = order.worker
        own_order = dataclasses.replace(order, worker=number)
        if not rank:
            self._crew.obey(own_order)
            return
        self._restarts[order.worker] += order.kind == "restart"
        self._wire.send(rank, "order", *dataclasses.astuple(own_order))
        self._pause.again()


def _of_rank(rank: int, event: Event) -> Event:
    return dataclasses.replace(event, worker=(rank, event.worker))


@contextmanager
def _ending(wire: "Wire") -> Iterator[None]:
    """Rank 0 tells all others how it ends, and waits until their workers have ended, too.

    An unexpected error, a bug, is passed on: `cli.run` then ends all ranks at once.
    """
    code, text, cause = 0, "", None
    try:
        yield
    except (ShardwiseError, OSError) as error:
        (code, text), cause = errors.verdict(error), error
    wire.tell_all("end", code, text, last=True)
    left = set(wire.others)
    while left:
        left -= {rank for rank, (kind, *_) in wire.received() if kind == "ended"}
        time.sleep(_SHORTEST_SECONDS)
    if code:
        raise of_code(code, text) from cause


class _Pause:
    """How long to pause between polls for messages: a share of the time since the last one.

    MPI cannot wait without keeping a core busy. So with tiny shards a rank is always awake, and a
    rank whose workers compute for long costs next to nothing.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()

    def again(self) -> None:
        """Note that a message came, or that an answer is on its way."""
        self._last = time.monotonic()

    def seconds(self) -> float:
        """The next pause."""
        share = _SHARE * (time.monotonic() - self._last)
        return min(max(share, _SHORTEST_SECONDS), _LONGEST_SECONDS)


class Wire:
    """Small messages between rank 0 and the others, as lists that JSON can write.

    No call waits. Both ends give signs of life; a rank that has heard nothing from the other end
    for the limit in seconds ends all ranks, as nothing else would if a rank hangs.
    """

    def __init__(self, comm: Any, limit: float) -> None:
        self._comm, self._limit = comm, limit
        self.others = [0] if comm.rank else list(range(1, comm.size))
        self._heard = dict.fromkeys(self.others, time.monotonic())
        self._sign_at = time.monotonic()
        self._sent: list[Any] = []
        self._last = False

    def send(self, to: int, *message: Any) -> None:
        """Start to send a message."""
        from mpi4py import MPI

        data = json.dumps(message).encode()
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.Isend([data, MPI.BYTE], to, _TAG))

    def tell_all(self, *message: Any, last: bool = False) -> None:
        """Send a message to the other end, from rank 0 to all.

        After the ``last`` one nothing follows, not even signs of life: a message that nobody
        receives keeps MPI from ending well.
        """
        self._last = last
        for other in self.others:
            self.send(other, *message)

    def flush(self) -> None:
        """Wait until all that was sent has left this process."""
        while not all(request.Test() for request in self._sent):
            time.sleep(_SHORTEST_SECONDS)

    def received(self) -> list[tuple[int, list[Any]]]:
        """The messages that have come, each with the rank that sent it."""
        from mpi4py import MPI

        messages, status, now = [], MPI.Status(), time.monotonic()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            raw, source = bytearray(status.Get_count(MPI.BYTE)), status.Get_source()
            self._comm.Recv([raw, MPI.BYTE], source, _TAG)
            self._heard[source] = now
            messages.append((source, json.loads(raw)))
        self._live(now)
        return [(source, message) for source, message in messages if message != ["alive"]]

    def _live(self, now: float) -> None:
        """Give a sign of life, and end all ranks if one is missing."""
        if now - self._sign_at > self._limit / _SIGNS:
            self._sign_at = now
            if not self._last:
                self.tell_all("alive")
            silent = [rank for rank in self.others if now - self._heard[rank] > self._limit]
            if silent:
                log.error(
                    "rank %d has given no sign of life for %.0f s; all ranks end: try again",
                    silent[0], self._limit,
                )  # fmt: skip
                abort(self._comm, TryAgain.exit_code)
