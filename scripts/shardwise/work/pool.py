"""Worker processes of one node, each with a device, and who watches over them.

A worker that dies costs the shard that it was computing: that fails, and a new process takes its
place, which goes on with its claims. One that dies twice without finishing a shard stays away.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

from shardwise.errors import FAULT, InputError, IntegrityError, TryAgain
from shardwise.host import SCRIPTS
from shardwise.mpi import launch
from shardwise.plan.plan import Plan
from shardwise.processes import contain
from shardwise.records import failures
from shardwise.records.store import Store
from shardwise.work import claims
from shardwise.work.board import Board

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 10.0  # how long a worker that is asked to end may take before it is killed
_DEATHS = 2  # in a row, without a finished shard in between
_OWN_CODES = (0, FAULT, *(kind.exit_code for kind in (InputError, IntegrityError, TryAgain)))
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class _Seat:
    """The place of a worker: its words, and the process that has it now."""

    who: str
    words: list[str]
    board: Board = field(default_factory=Board.new)
    process: subprocess.Popen[bytes] | None = None
    finished: int = 0
    deaths: int = 0


class Pool:
    """Some workers of a round, from their start to their end.

    Parameters
    ----------
    who
        Who starts them: no other process of the round has this name.
    words
        What each worker is told besides its plan and round, one list per worker.
    """

    def __init__(
        self, plan: Plan, round_name: str, who: str, words: Sequence[Sequence[str]]
    ) -> None:
        self._plan, self._round, self._store = plan, claims.load(plan, round_name), Store(plan)
        fixed = [sys.executable, str(SCRIPTS / "work.py"), f"--plan={plan.results.plan}"]
        self._seats, self._given_back = [], len(words)
        for number, own in enumerate(words):
            name = f"{who} worker {number}"
            line = [*fixed, f"--round={round_name}", f"--name={name}", *own]
            self._seats.append(_Seat(name, line))

    def run(self) -> int:
        """Start all workers and wait for their end; the worst of their exit codes."""
        before = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON}
        codes = set()
        if self._plan.function:
            contain.adopt()
        try:
            while self._given_back:  # what a dead worker had, after the others had come to an end
                self._given_back = 0
                for seat in self._seats:
                    if seat.deaths < _DEATHS:
                        self._start(seat)
                while working := [seat for seat in self._seats if seat.process is not None]:
                    ended = [seat for seat in working if seat.process.poll() is not None]
                    codes |= {self._ended(seat) for seat in ended}
                    time.sleep(_POLL_SECONDS)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
        return next((code for code in (3, 2, 1, TryAgain.exit_code) if code in codes), 0)

    def _start(self, seat: _Seat) -> None:
        seat.board.begin("")
        with launch.hide_rank_variables():
            environ = os.environ | {Board.VARIABLE: f"{seat.board.descriptor} {os.getpid()}"}
        environ |= {"RESTARTED": "1"} if seat.deaths else {}
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker leaves it to its parent
        seat.process = subprocess.Popen(
            seat.words, env=environ, stdin=subprocess.DEVNULL, pass_fds=[seat.board.descriptor],
            start_new_session=self._plan.function is not None,  # it may end its process group
        )  # fmt: skip
        signal.signal(signal.SIGINT, handler)

    def _ended(self, seat: _Seat) -> int:
        """A worker has ended: start another one if it died; its exit code."""
        code, seat.process = seat.process.returncode, None
        self._sweep()
        if seat.board.shard is None:  # else it did not come to an end of its own
            return code if code in _OWN_CODES else TryAgain.exit_code
        self._bury(seat.board.shard, code)
        progress, seat.finished = seat.board.finished > seat.finished, seat.board.finished
        seat.deaths = 1 if progress else seat.deaths + 1
        if seat.deaths < _DEATHS:
            self._start(seat)
        else:
            is_whole = self._store.is_whole
            own = claims.Claims(self._plan, self._round, seat.who, is_whole, again=True)
            self._given_back += own.give_back()
        return TryAgain.exit_code

    def _bury(self, shard: str, status: int) -> None:
        """Write down that a shard has failed with the worker that computed it."""
        words, code = f"its process {contain.words(status)}", TryAgain.exit_code
        if self._plan.function and status >= 0:
            words = f"product: your function {self._plan.function} {contain.words(status)}"
            code = InputError.exit_code
        log.warning("shard %s: %s", shard, words)
        if self._store.is_whole(shard):
            return
        before = claims.of_this_run(self._plan, [shard]).get(shard)
        attempt = max(self._round.attempt, before.attempt + 1 if before else 0)
        name = self._plan.shards[shard].name
        failures.note(self._plan.results, name, code, words, attempt=attempt)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        for seat in self._seats:
            if seat.process is not None:
                seat.process.send_signal(number)

    def _end(self) -> None:
        """End the workers that are left, and what they have left, after an error or a signal."""
        left = [seat.process for seat in self._seats if seat.process is not None]
        for process in left:
            process.terminate()
        end = time.monotonic() + _GRACE_SECONDS
        for process in left:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._sweep()

    def _sweep(self) -> None:
        """End the processes that a user's function has left: they may hold a device."""
        if self._plan.function:
            contain.sweep([seat.process.pid for seat in self._seats if seat.process is not None])
