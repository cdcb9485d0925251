"""Worker processes of one node, each with a device, and the pool that watches them.

If a worker dies, the shard that it was computing fails, its claims are free again, and a new
process replaces it, unless several have died there.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from shardwise.errors import TryAgain
from shardwise.host import SCRIPTS
from shardwise.plan.plan import Plan
from shardwise.processes import contain, threads
from shardwise.records.failures import last_start
from shardwise.records.store import WORKER, Store
from shardwise.work import claims

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 10.0  # for workers to end
_DEATHS = 4  # of workers on one seat: its device may be the cause
heard: list[int] = []  # signals by which the scheduler has said that it will end this job


def heed(tell: Callable[[int], object] = lambda _: None) -> None:
    """Note such signals from now on, and tell somebody else of each."""

    def handle(number: int, _: FrameType | None) -> None:
        heard.append(number)
        tell(number)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handle)


class Pool:
    """Some workers of a node; each seat has ``words``: options besides the plan and the round."""

    def __init__(self, plan: Plan, words: Sequence[Sequence[str]]) -> None:
        self._plan, self._store, self._words = plan, Store(plan), words
        self._deaths = [0] * len(words)
        self._running: dict[int, subprocess.Popen[bytes]] = {}  # by seat

    def run(self, round_name: str) -> int:
        """Start the workers of a round and wait for their end; return the worst exit code."""
        self._round = claims.load(self._plan, round_name)
        codes = set()
        if self._plan.function:
            contain.adopt()
        heed(lambda number: [w.send_signal(number) for w in self._running.values()])
        try:
            for seat in range(len(self._words)):
                self._start(seat)
            while self._running:
                for seat, process in list(self._running.items()):
                    if process.poll() is not None:
                        codes.add(self._ended(seat))
                time.sleep(_POLL_SECONDS)
        finally:  # after an error or a signal, some still run
            contain.end(self._running.values(), _GRACE_SECONDS)
            self._sweep()
        return claims.worst(codes)

    def _start(self, seat: int) -> None:
        own = max(1, threads.processors() // len(self._words))
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers leave it to their parent
        self._running[seat] = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "work.py"), f"--plan={self._plan.results.plan}",
             f"--parent={os.getpid()}", f"--round={self._round.name}", *self._words[seat]],
            env=contain.without_stray() | {"OMP_NUM_THREADS": str(own)},
            stdin=subprocess.DEVNULL,
            start_new_session=self._plan.function is not None,  # a function may kill its own group
        )  # fmt: skip
        signal.signal(signal.SIGINT, handler)

    def _ended(self, seat: int) -> int:
        """Handle the end of a worker, and start another one if it died; return its exit code."""
        process = self._running.pop(seat)
        self._sweep()
        own = claims.Claims(self._store, self._round, process.pid)
        if not (left := own.open()):
            if process.returncode < 0:  # it was killed while it prepared its device
                words = f"a worker {contain.words(process.returncode)} before it had a shard"
                self._store.fail(WORKER, TryAgain(words))
            return process.returncode
        begun = {s: last_start(self._plan.results.starts(self._plan.shards[s].name)) for s in left}
        if mine := [s for s in left if begun[s] and begun[s].process == process.pid]:
            shard = max(mine, key=begun.__getitem__)
            error = TryAgain(f"its worker {contain.words(process.returncode)}")
            log.warning("shard %s: %s", shard, error)
            self._store.fail(shard, error, attempt=self._round.attempt)
        own.give_back()
        self._deaths[seat] += 1
        if self._deaths[seat] < _DEATHS and not heard:
            self._start(seat)
        return TryAgain.exit_code

    def _sweep(self) -> None:
        """End the processes that a user's function has left: they may hold a device."""
        if self._plan.function:
            contain.sweep([process.pid for process in self._running.values()])
