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
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import TryAgain
from shardwise.host import SCRIPTS
from shardwise.plan.plan import Plan
from shardwise.processes import contain, threads
from shardwise.records import failures
from shardwise.records.failures import last_start
from shardwise.records.store import Store
from shardwise.work import claims, run_time

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 10.0  # for workers to end
_DEATHS = 4  # of workers on one device: it may be the cause


@dataclass
class _Seat:
    """The place of a worker: its command, and the process that fills it now."""

    words: list[str]
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0


class Pool:
    """Some workers of a node, each with its ``words``: options besides its plan and round."""

    def __init__(self, plan: Plan, words: Sequence[Sequence[str]]) -> None:
        self._plan, self._store = plan, Store(plan)
        fixed = [sys.executable, str(SCRIPTS / "work.py"), f"--plan={plan.results.plan}"]
        fixed += [f"--parent={os.getpid()}"]
        self._seats = [_Seat([*fixed, *own]) for own in words]

    def run(self, round_name: str) -> int:
        """Start the workers of a round and wait for their end; return the worst exit code."""
        self._round = claims.load(self._plan, round_name)
        codes = set()
        if self._plan.function:
            contain.adopt()
        run_time.heed(self._pass_on)
        try:
            for seat in self._seats:
                self._start(seat)
            while self._processes():
                for seat in self._seats:
                    if seat.process is not None and seat.process.poll() is not None:
                        codes.add(self._ended(seat))
                time.sleep(_POLL_SECONDS)
        finally:  # after an error or a signal, some still run
            contain.end(self._processes(), _GRACE_SECONDS)
            self._sweep()
        return claims.worst(codes)

    def _start(self, seat: _Seat) -> None:
        own = max(1, threads.processors() // len(self._seats))
        environ = contain.without_stray() | {"OMP_NUM_THREADS": str(own)}
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers leave it to their parent
        seat.process = subprocess.Popen(
            [*seat.words, f"--round={self._round.name}"], env=environ, stdin=subprocess.DEVNULL,
            start_new_session=self._plan.function is not None,  # a function may kill its own group
        )  # fmt: skip
        signal.signal(signal.SIGINT, handler)

    def _ended(self, seat: _Seat) -> int:
        """Handle the end of a worker, and start another one if it died; return its exit code."""
        process, seat.process = seat.process, None
        self._sweep()
        starts = self._plan.results.starts
        own = claims.Claims(self._plan, self._round, process.pid, self._store.is_whole)
        if not (left := own.open()):
            return process.returncode
        begun = {s: last_start(starts(self._plan.shards[s].name)) for s in left}
        if mine := [s for s in left if begun[s] and begun[s].process == process.pid]:
            name = self._plan.shards[max(mine, key=begun.__getitem__)].name
            words, attempt = f"its worker {contain.words(process.returncode)}", self._round.attempt
            log.warning("shard %s: %s", name, words)
            failures.note(self._plan.results, name, TryAgain.exit_code, words, attempt=attempt)
        own.give_back()
        seat.deaths += 1
        if seat.deaths < _DEATHS and not run_time.heard:
            self._start(seat)
        return TryAgain.exit_code

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [seat.process for seat in self._seats if seat.process is not None]

    def _pass_on(self, number: int) -> None:
        for process in self._processes():
            process.send_signal(number)

    def _sweep(self) -> None:
        """End the processes that a user's function has left: they may hold a device."""
        if self._plan.function:
            contain.sweep([process.pid for process in self._processes()])
