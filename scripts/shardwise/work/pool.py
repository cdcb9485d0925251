"""Worker processes of one node, each with a device, and the pool that watches them.

If a worker dies, the shard that it was computing fails, and a new process goes on with its claims.
A worker that dies twice without finishing a shard in between is not started again.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import InputError, TryAgain
from shardwise.host import SCRIPTS
from shardwise.plan.plan import Plan
from shardwise.processes import contain, environment, threads
from shardwise.records import failures
from shardwise.records.failures import last_start
from shardwise.records.store import Store
from shardwise.work import claims, run_time

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 10.0  # for workers to end
_DEATHS = 2  # in a row, without a finished shard in between


@dataclass
class _Seat:
    """The place of a worker: its name, its command, and the process that fills it now."""

    who: str
    words: list[str]
    process: subprocess.Popen[bytes] | None = None
    ended: int = 0  # how many shards had ended when its last process died
    deaths: int = 0


class Pool:
    """Some workers of a node, each with its ``words``: options besides its plan and round.

    ``who`` names the process that starts them; no other process has this name.
    """

    def __init__(self, plan: Plan, who: str, words: Sequence[Sequence[str]]) -> None:
        self._plan, self._store = plan, Store(plan)
        fixed = [sys.executable, str(SCRIPTS / "work.py"), f"--plan={plan.results.plan}"]
        fixed += [f"--parent={os.getpid()}"]
        self._seats = [_Seat(f"{who} worker {i}", [*fixed, *own]) for i, own in enumerate(words)]

    def run(self, round_name: str) -> int:
        """Start the workers of a round and wait for their end; return the worst exit code."""
        self._round = claims.load(self._plan, round_name)
        codes = set()
        if self._plan.function:
            contain.adopt()
        run_time.heed(self._pass_on)
        try:
            for seat in self._seats:
                seat.ended = 0
                if seat.deaths < _DEATHS:
                    self._start(seat)
            while working := [seat for seat in self._seats if seat.process is not None]:
                ended = [seat for seat in working if seat.process.poll() is not None]
                codes |= {self._ended(seat) for seat in ended}
                time.sleep(_POLL_SECONDS)
        finally:  # after an error or a signal, some still run
            left = [seat.process for seat in self._seats if seat.process is not None]
            contain.end(left, _GRACE_SECONDS)
            self._sweep()
        return claims.worst(codes)

    def _start(self, seat: _Seat, again: bool = False) -> None:
        own = max(1, threads.processors() // len(self._seats))
        environ = environment.without_stray() | {"OMP_NUM_THREADS": str(own)}
        environ |= {"RESTARTED": "1"} if again else {}
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers leave it to their parent
        words = [*seat.words, f"--name={seat.who}", f"--round={self._round.name}"]
        seat.process = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL,
            start_new_session=self._plan.function is not None,  # a function may kill its own group
        )  # fmt: skip
        signal.signal(signal.SIGINT, handler)

    def _ended(self, seat: _Seat) -> int:
        """Handle the end of a worker, and start another one if it died; return its exit code."""
        process, seat.process = seat.process, None
        self._sweep()
        own = claims.Claims(self._plan, self._round, seat.who, self._store.is_whole, again=True)
        if not (left := own.open()):
            seat.deaths = 0
            return process.returncode
        seat.deaths = 1 if own.ended() > seat.ended else seat.deaths + 1
        begun = {s: last_start(self._plan.results.starts(self._plan.shards[s].name)) for s in left}
        if mine := [s for s in left if begun[s] and begun[s].process == process.pid]:
            self._bury(max(mine, key=begun.__getitem__), process.returncode)
        seat.ended = own.ended()
        if seat.deaths < _DEATHS and not run_time.heard:
            self._start(seat, again=True)
        return TryAgain.exit_code

    def _bury(self, shard: str, status: int) -> None:
        """Write the failure of a shard whose worker died while computing it."""
        words, code = f"its process {contain.words(status)}", TryAgain.exit_code
        if self._plan.function and status >= 0:
            words = f"product: your function {self._plan.function} {contain.words(status)}"
            code = InputError.exit_code
        log.warning("shard %s: %s", shard, words)
        name = self._plan.shards[shard].name
        failures.note(self._plan.results, name, code, words, attempt=self._round.attempt)

    def _pass_on(self, number: int) -> None:
        for seat in self._seats:
            if seat.process is not None:
                seat.process.send_signal(number)

    def _sweep(self) -> None:
        """End the processes that a user's function has left: they may hold a device."""
        if self._plan.function:
            contain.sweep([seat.process.pid for seat in self._seats if seat.process is not None])
