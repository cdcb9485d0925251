"""A worker process: it keeps one device, and computes the shards that it is assigned.

It talks to its parent through one pipe: ids of shards come in, events go out. If the pipe closes,
the parent is dead, and the worker ends at once. One thread computes; meanwhile another one begins
to read the next shard, and a third one writes the rest of the last. It never imports mpi4py.
"""

import contextlib
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Protocol

from shardwise import errors
from shardwise.devices import choose
from shardwise.dispatch.events import Event, Limits
from shardwise.errors import DeviceFailed
from shardwise.files import commit
from shardwise.files.paths import Results, make_folder
from shardwise.host import SCRIPTS
from shardwise.multiply.job import ShardJob, warm
from shardwise.multiply.session import Session
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.processes import contain
from shardwise.records import locks
from shardwise.records import logs as logss

log = logging.getLogger(__name__)


def main(
    pipe: Connection, worker: int, plan_path: str, limits: Limits, choice: choose.Choice
) -> None:
    """Work until the parent says otherwise: by SIGTERM, or by its death."""
    for number in (signal.SIGINT, signal.SIGHUP):  # from a terminal: the parent handles them
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, errors.terminate)
    try:
        _work(_ParentPipe(pipe, worker), plan_path, limits, choice)
        threading.Event().wait()  # it has said that it cannot continue: the parent ends it
    except errors.Terminated:
        logging.shutdown()
        _exit(128 + signal.SIGTERM)


def _exit(code: int) -> NoReturn:
    """End at once; shards that were begun ahead must not delay it."""
    commit.abandon()
    contain.sweep()  # it has children only if a user's function has left some
    os._exit(code)


def _work(parent: "_ParentPipe", plan_path: str, limits: Limits, choice: choose.Choice) -> None:
    """Take a device and shards until the device fails."""
    threading.Thread(target=parent.listen, daemon=True).start()
    logs = Logs(plan_path)
    try:
        plan = plans.load(Path(plan_path))
        with locks.hold_job_lock(plan.results):
            compute(plan, parent, logs, limits, choice)
    except Exception as error:
        code, words = errors.explain(error)
        parent.send("failed", code=code, reason=words)


class Feed(Protocol):
    """What assigns shards and receives events: the parent, or the claims of an array task.

    None follows the last shard.
    """

    assigned: "SimpleQueue[str | None]"

    def send(self, kind: str, shard: str | None = None, **facts: Any) -> None:
        """Report an event, with the fields of `Event`."""


def compute(
    plan: Plan, feed: Feed, logs: "Logs", limits: Limits, choice: choose.Choice | None = None
) -> None:
    """Take a device, and compute shards on it until the device fails or the feed ends."""
    if plan.function:  # it may do anything to this process
        plan = plan.anchored(Path.cwd())
        contain.adopt()
        os.dup2(2, 1)  # what it prints
    needed = max(shard.device_memory for shard in plan.shards.values())
    session = Session(plan, needed, limits.memory, limits.wait, choice)
    _ShardLoop(plan, logs, feed, session).work()


class _ParentPipe:
    """The pipe to the parent: several threads may send, one listens."""

    def __init__(self, pipe: Connection, worker: int) -> None:
        self._pipe, self._worker, self._lock = pipe, worker, threading.Lock()
        self.assigned: SimpleQueue[str | None] = SimpleQueue()

    def listen(self) -> None:
        """Receive assignments until the parent ends, which ends this process."""
        while True:
            try:
                self.assigned.put(self._pipe.recv())
            except (EOFError, OSError):
                _exit(1)

    def send(self, kind: str, shard: str | None = None, **facts: Any) -> None:
        """Tell the parent of an event."""
        with self._lock, contextlib.suppress(OSError):  # it is dead: `listen` ends this process
            self._pipe.send(Event(self._worker, kind, shard, **facts))


class _ShardLoop:
    """Computes one shard, while other threads begin the next and finish the one before.

    Parameters
    ----------
    session
        The device, and what is kept on it.
    """

    def __init__(self, plan: Plan, logs: "Logs", feed: Feed, session: Session) -> None:
        self._plan, self._logs, self._feed, self._session = plan, logs, feed, session
        self._begun: SimpleQueue[tuple[str, Future[ShardJob]] | None] = SimpleQueue()
        self._next: list[tuple[str, Future[ShardJob]] | None] = []  # it was looked at already
        self._ahead = ThreadPoolExecutor(1, "ahead")
        self._behind = ThreadPoolExecutor(1, "behind")
        self._last: Future[bool] | None = None  # the shard behind; whether the device is usable
        self._device = session.device.get("uuid")

    def work(self) -> None:
        """Take shards until the device fails, or there are no more."""
        threading.Thread(target=self._begin_all, daemon=True).start()
        warm(self._session, max(self._plan.shards.values(), key=lambda shard: shard.bytes).shard)
        self._feed.send("ready", device=self._device)
        usable = True
        while usable:
            # The compiler of CUDA kernels leaves SIGTERM such that it interrupts no wait.
            signal.siginterrupt(signal.SIGTERM, True)
            shard_and_job = self._next.pop() if self._next else self._begun.get()
            usable = shard_and_job is not None and self._compute(*shard_and_job)

    def _begin_all(self) -> None:
        while (shard := self._feed.assigned.get()) is not None:
            self._begun.put((shard, self._ahead.submit(self._begin, shard)))
        self._begun.put(None)

    def _begin(self, shard: str) -> ShardJob:
        with self._logs.of(shard, new=True):
            return ShardJob(self._session, shard).begin()

    def _compute(self, shard: str, begun: "Future[ShardJob]") -> bool:
        """Queue a shard on the device, and leave the rest behind; whether to take another one."""
        with self._logs.of(shard):
            try:
                job = begun.result()
                job.compute(self._coming_after(shard))
                self._tidy()
                if not self._settled():
                    return False
            except errors.Terminated as error:
                errors.explain(error)
                raise
            except Exception as error:
                self._tidy()
                # The one behind first: its end is told by a process that still counts.
                return self._settled() and self._failed(shard, error)
        self._feed.send("queued", shard)
        self._last = self._behind.submit(self._finish, shard, job)
        return True

    def _coming_after(self, shard: str) -> "Callable[[], ShardJob | None]":
        """Asks for the next shard when it is first called; gives it once that has begun."""
        asked = False

        def coming() -> ShardJob | None:
            nonlocal asked
            if not asked:
                self._feed.send("read", shard)
                asked = True
            if not self._next:
                with contextlib.suppress(Empty):
                    self._next.append(self._begun.get_nowait())
            begun = self._next[0][1] if self._next and self._next[0] else None
            # One that could not be begun is told of when it is its turn.
            return begun.result() if begun and begun.done() and not begun.exception() else None

        return coming

    def _settled(self) -> bool:
        """Wait for the shard behind; whether the device can still be used."""
        return self._last is None or self._last.result()

    def _finish(self, shard: str, job: ShardJob) -> bool:
        """Write what was computed, and tell the parent; whether the device can still be used."""
        with self._logs.of(shard):
            try:
                job.finish()
            except Exception as error:
                return self._failed(shard, error)
            log.info("%s written", self._plan.results.receipt(self._plan.shards[shard].name))
        self._logs.settle(shard)
        self._feed.send("done", shard, device=self._device)
        return True

    def _failed(self, shard: str, error: Exception) -> bool:
        """Tell the parent of a failure; whether the device can still be used."""
        usable = not isinstance(error, DeviceFailed)
        barred = getattr(error, "suspect", False)
        code, words = errors.explain(error)
        gc.collect()  # what failed holds memory of the device, by way of its tracebacks
        facts = {"code": code, "reason": words, "device": self._device}
        self._feed.send("failed", shard, suspect=not usable, barred=barred, **facts)
        return usable

    def _tidy(self) -> None:
        """End the processes that a user's function has left."""
        if self._plan.function:
            contain.sweep()


class Logs:
    """Sends what threads log to the logs of the shards that they work on.

    What belongs to no shard goes where the parent's own words go.
    """

    def __init__(self, plan_path: str) -> None:
        self._plan_path, self._results = plan_path, Results.of_plan(Path(plan_path).absolute())
        self._shards: dict[int, str] = {}
        self._main = threading.get_ident()
        logss.begin()
        self._own = logging.getLogger().handlers[0]
        self._own.addFilter(lambda record: self._shard(record) is None)

    @contextlib.contextmanager
    def of(self, shard: str, new: bool = False) -> Iterator[None]:
        """Let what this thread logs, and the threads that it starts, go to a shard's log.

        Parameters
        ----------
        new
            Whether the shard is tried anew: then its log begins anew.
        """
        handler = self._handler(self._results.log("multiply", shard), "w" if new else "a")
        handler.setFormatter(self._own.formatter)
        handler.addFilter(lambda record: self._shard(record) == shard)
        logging.getLogger().addHandler(handler)
        self._shards[threading.get_ident()] = shard
        try:
            if new:
                logss.log_start(self._by_hand(shard))
            yield
        finally:
            del self._shards[threading.get_ident()]
            logging.getLogger().removeHandler(handler)
            with contextlib.suppress(OSError):  # a full disk: see `_handler`
                handler.close()

    def settle(self, shard: str) -> None:
        """Put the log of a shard that went well into the worker's own: a file less per shard."""
        for message in logss.settle(self._results, shard):
            words = (log.name, logging.INFO, "", 0, "shard %s: %s", (shard, message), None)
            with self._own.lock or contextlib.nullcontext():
                self._own.emit(log.makeRecord(*words))

    def _handler(self, path: Path, mode: str) -> logging.Handler:
        # Without room for a log the shard goes on: it will say so itself, where it needs room.
        try:
            make_folder(path.parent)
            return logging.FileHandler(path, mode, encoding="utf-8")
        except OSError:
            return logging.NullHandler()

    def _shard(self, record: logging.LogRecord) -> str | None:
        """The shard of a thread, or of the one that computes where it has none of its own."""
        return self._shards.get(record.thread, self._shards.get(self._main))

    def _by_hand(self, shard: str) -> list[str]:
        """What computes the shard alone."""
        return [str(SCRIPTS / "multiply.py"), "--plan", self._plan_path, "--shard", shard]
