"""The worker processes of one node, as their parent sees them: started, fed, replaced, ended.

Only the workers load the code that computes. They are started by a fork server, a process that has
loaded NumPy, but never CUDA or MPI: a fork after those breaks silently. When the parent dies,
however it dies, the workers end at once.
"""

import contextlib
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from shardwise.devices.choose import Choice
from shardwise.dispatch.events import Event, Limits, Order
from shardwise.errors import InputError
from shardwise.host import node
from shardwise.processes import contain
from shardwise.processes.hangs import WARNED_AFTER, Hang, Watch

log = logging.getLogger(__name__)

_GRACE_SECONDS = 10.0  # how long a worker that is asked to end may take before it is killed
_EXIT_SECONDS = 5.0  # how long to wait for the exit code of a worker whose pipe is closed already

_SAFE_PATH = "PYTHONSAFEPATH"
_OURS = "for the fork server"

_LONGEST_FOLDER = 70  # bytes of a folder of temporary files in which a socket can still have a name


class _Member:
    """A worker process: its pipe, its device, and the shards that it has, the present one first."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.device: str | None = None
        self.shards: list[str] = []
        self.warned = False

    def __str__(self) -> str:
        work = f"computes shard {self.shards[0]}" if self.shards else "has no shard yet"
        return f"process {self.process.pid} on {node()}, which {work}" + (
            f" on {self.device}" if self.device else ""
        )


class Crew(AbstractContextManager):
    """Worker processes, one per device, from the beginning of `with` to its end.

    Parameters
    ----------
    plan_path
        The ``plan.tsv`` whose shards they compute.
    share
        Number of this crew among those of this node, and how many there are: worker k looks first
        at device ``share[0] + k * share[1]`` of those it may take.
    function
        The user's function that they call, if any: what it leaves behind is ended.
    """

    def __init__(
        self,
        plan_path: Path,
        workers: int,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        share: tuple[int, int] = (0, 1),
        function: str | None = None,
    ) -> None:
        self._plan_path, self._limits = str(plan_path), limits
        self._function, self._spared = function, set[int]()
        self._watch = Watch(limits.hang)
        self._count, self._share = workers, share
        self._members: dict[int, _Member] = {}
        self._context = multiprocessing.get_context("forkserver")

    def __enter__(self) -> "Crew":
        """Start the workers; none is ready yet when this returns."""
        start_fork_server()
        try:
            for worker in range(self._count):
                self._start(worker, ())
            if self._function:  # what a dead worker leaves becomes a child of this process
                contain.adopt()
                self._spared = contain.children()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        self.stop()

    def poll(self, timeout: float) -> list[Event]:
        """The events since the last call, in order per worker; waits for some, up to a time."""
        if not self._members:
            time.sleep(timeout)
            return []
        members = self._members.copy()
        # A child that a user's function has forked may hold the pipe of a worker that is gone.
        both = [(member.pipe, member.process.sentinel) for member in members.values()]
        ready = set(wait([end for ends in both for end in ends], timeout))
        events = []
        for worker, member in members.items():
            if member.pipe in ready or (member.process.sentinel in ready and member.pipe.poll()):
                events.append(self._take(worker))
            elif member.process.sentinel in ready:
                events.append(self._bury(worker))
        return [*events, *self._end_hanging(time.monotonic())]

    def _end_hanging(self, now: float) -> Iterator[Event]:
        """Report workers that hang, and end those that have hung for too long."""
        workers = {member.process.pid: worker for worker, member in self._members.items()}
        for pid, hang in self._watch.look(workers, now).items():
            member, limit = self._members[workers[pid]], self._watch.limit
            if hang.seconds >= limit:
                member.process.kill()
                yield self._bury(workers[pid], hang)
            elif hang.seconds >= WARNED_AFTER * limit and not member.warned:
                member.warned = True
                log.warning(
                    "%s, %s for %.0f s; after %.0f s it is killed, and its shard is tried again",
                    member, hang.how, hang.seconds, limit,
                )  # fmt: skip

    def obey(self, order: Order) -> None:
        """Carry out an order of the leader; if the worker is killed, its device is free at return.

        A worker has at most one shard beside the one that it computes.
        """
        worker = order.worker
        if order.kind == "assign":
            self._assign(worker, order.shard)
            return
        self._retire(worker)
        if order.kind == "restart":
            self._start(worker, order.without)

    def _assign(self, worker: int, shard: str) -> None:
        member = self._members.get(worker)
        if member is None:
            return  # its death was told before this was decided
        member.shards.append(shard)
        with contextlib.suppress(OSError):  # it has just died: the next poll says so
            member.pipe.send(shard)

    def _retire(self, worker: int) -> None:
        """Kill a worker; it sends no more events."""
        member = self._members.pop(worker, None)
        if member is not None:
            member.process.kill()
            _gone(member)
            self._sweep()

    def stop(self) -> None:
        """End all workers, by asking them first, so that they leave no temporary files."""
        members = list(self._members.values())
        self._members.clear()
        for member in members:
            member.process.terminate()
        end = time.monotonic() + _GRACE_SECONDS
        for member in members:
            member.process.join(max(0.0, end - time.monotonic()))
            if member.process.is_alive():
                log.warning("process %d did not end when asked to: killed", member.process.pid)
                member.process.kill()
            _gone(member)
        self._sweep()

    def _sweep(self) -> None:
        """End what a user's function has left, in workers that did not end it themselves."""
        if self._spared:
            contain.sweep(self._spared)

    def _start(self, worker: int, without: Collection[str]) -> None:
        ours, theirs = self._context.Pipe()
        prefer = self._share[0] + worker * self._share[1]
        choice = Choice(prefer, tuple(without))
        arguments = (theirs, worker, self._plan_path, self._limits, choice)
        process = self._context.Process(
            target=_work, args=arguments, name=f"worker {worker}", daemon=True
        )
        try:
            process.start()
        finally:
            theirs.close()  # else its end would not be seen
        self._members[worker] = _Member(process, ours)

    def _take(self, worker: int) -> Event:
        """The next event of a worker, or its death."""
        member = self._members[worker]
        try:
            event = member.pipe.recv()
        except (EOFError, OSError):  # the latter in the middle of a word
            return self._bury(worker)
        if event.kind == "ready":
            member.device = event.device
        if event.kind in ("done", "failed") and event.shard in member.shards:
            member.shards.remove(event.shard)
        return event

    def _bury(self, worker: int, hang: Hang | None = None) -> Event:
        """The end of a worker: by itself, or because it has hung."""
        member = self._members.pop(worker)
        code = _gone(member)
        self._sweep()
        shard = member.shards[0] if member.shards else None
        if hang is not None:
            reason = f"its process {member.process.pid} {hang.how} for {hang.seconds:.0f} s: killed"
            return _death(member, worker, shard, reason)
        if self._function and shard and code is not None and code >= 0:
            words = f"product: your function {self._function} {contain.words(code)}"
            return Event(worker, "died", shard, InputError.exit_code, words, member.device)
        runs = f", which runs your function {self._function}," if self._function else ""
        end = "closed its pipe and hangs" if code is None else contain.words(code)
        return _death(member, worker, shard, f"its process{runs} {end}")


def _death(member: _Member, worker: int, shard: str | None, reason: str) -> Event:
    return Event(worker, "died", shard, None, reason, member.device, member.device is not None)


def start_fork_server() -> None:
    """Start the process that all workers are forked from, unless it runs already."""
    # Python 3.11 does not tell the fork server where this library lies: it might find another.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["numpy"])
    # Python 3.11.0 gave it a socket without a file, to which any user of the machine could connect.
    util.abstract_sockets_supported = False
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
    # It must not import modules from the working directory, such as a signal.py.
    os.environ.setdefault(_SAFE_PATH, _OURS)
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = before
        _forget_safe_path()


def _forget_safe_path() -> None:
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]


def _work(*arguments: Any) -> None:
    """In the new process: load the code that computes."""
    _forget_safe_path()  # a user's function may start a Python of its own
    from shardwise.dispatch import worker

    worker.main(*arguments)


def _gone(member: _Member) -> int | None:
    """Wait for the end of a process, and give its exit code; None if it does not end."""
    process = member.process
    process.join(_EXIT_SECONDS)
    member.pipe.close()
    if process.exitcode is None:
        log.warning(
            "process %d cannot be ended: it hangs, maybe in the driver, and keeps its device%s",
            process.pid, f" {member.device}" if member.device else "",
        )  # fmt: skip
        # Else Python would wait for it at its own end, for ever.
        multiprocessing.process._children.discard(process)
    return process.exitcode
