"""Where each shard of a dispatch stands: how array, pool and mpi count, try again, report and end.

Standard library only.
"""

import contextlib
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from shardwise import host
from shardwise.errors import InputError, IntegrityError, ShardwiseError, TryAgain
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import locks
from shardwise.records.logs import add_error
from shardwise.units import clock

log = logging.getLogger(__name__)

DEFAULT_RETRIES = 2
"""Tries after the first of one shard."""

LINE_SECONDS, LONGEST_LINE_SECONDS = 5.0, 60.0
"""Between two lines of the report, at first and at most; a long night must not fill the log."""

NOTE_SECONDS = 60.0

_FINAL = {1: ShardwiseError, 2: InputError, 3: IntegrityError}
"""Codes that another try would give again, and the error that the dispatch then ends with."""

_MOST_BYTES = 65536


class Tally:
    """Counts the shards of one dispatch and reports its progress.

    ``running`` maps shards in progress to the place where they are computed, ``whole`` holds those
    that this dispatch has finished, and ``lost`` maps those that have failed for good to the exit
    code (None: killed, lost) and the reason.

    Parameters
    ----------
    shards
        The ids to compute; the other shards of the plan count as done.
    retries
        Tries after the first of one shard.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[str],
        retries: int = DEFAULT_RETRIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._retries, self._clock = plan, retries, clock
        self._waiting = dict.fromkeys(shards)
        self._earlier = len(plan.shards) - len(self._waiting)
        self._failures: dict[str, int] = {}
        self.running: dict[str, str] = {}
        self.whole: set[str] = set()
        self.lost: dict[str, tuple[int | None, str]] = {}
        self._began = clock()
        self._said, self._said_at, self._news = "", self._began - LINE_SECONDS, False
        self._noted: dict[str, float] = {}

    @property
    def waiting(self) -> list[str]:
        """Shards that nobody computes; those that failed come last."""
        return list(self._waiting)

    @property
    def ended(self) -> bool:
        """Whether each shard is whole or has failed for good."""
        return not self._waiting and not self.running

    def began(self, shard: str, where: str) -> None:
        """Note that a shard is being computed, and where."""
        self._waiting.pop(shard, None)
        self.running[shard] = where

    def back(self, shard: str) -> None:
        """Let a shard wait again, through no fault of its own; this does not count as a try."""
        self._leave(shard)
        self._waiting[shard] = None

    def done(self, shard: str) -> None:
        """Note that a shard has its product and its receipt."""
        self._leave(shard)
        self.whole.add(shard)

    def failed(self, shard: str, code: int | None, reason: str) -> bool:
        """Note that a try of a shard has failed; return whether the shard waits for another try.

        The reason is written into the shard's own log. ``code`` is the exit code of the try, or
        None if it was killed or lost; after 1, 2 or 3 there is no other try.
        """
        reason = " ".join(reason.splitlines()) or "it gave no reason"
        self._leave(shard)
        add_error(self._plan.results.log("multiply", shard), reason)
        self._news = True
        self._failures[shard] = tries = self._failures.get(shard, 0) + 1
        if code in _FINAL or tries > self._retries:
            self.lost[shard] = (code, reason)
            log.warning("shard %s: %s; it is not tried again", shard, reason)
            return False
        self._waiting[shard] = None
        log.warning("shard %s: %s; try %d of %d follows",
                    shard, reason, tries + 1, self._retries + 1)  # fmt: skip
        return True

    def _leave(self, shard: str) -> None:
        """Take a shard out of wherever it is."""
        self._waiting.pop(shard, None)
        self.running.pop(shard, None)
        self.lost.pop(shard, None)

    def report(self) -> None:
        """Log the progress, every few seconds at most, but failures and the end at once."""
        now, text = self._clock(), self._line()
        if text == self._said:
            return
        pause = min(max(LINE_SECONDS, (now - self._began) / 100), LONGEST_LINE_SECONDS)
        if now - self._said_at < pause and not self._news and not self.ended:
            return
        self._said, self._said_at, self._news = text, now, False
        log.info("%s", text)

    def _line(self) -> str:
        counts = {"running": self.running, "failed": self.lost, "waiting": self._waiting}
        words = [f"{self._earlier + len(self.whole)} of {len(self._plan.shards)} shards done"]
        return ", ".join(words + [f"{len(some)} {name}" for name, some in counts.items() if some])

    def note(self, text: str) -> None:
        """Log a line beside the report; the same text comes at most once per minute."""
        now = self._clock()
        if now - self._noted.get(text, -NOTE_SECONDS) >= NOTE_SECONDS:
            self._noted[text] = now
            log.warning("%s", text)

    def finish(self) -> None:
        """Return if all shards are whole; else log each shard that failed, and raise.

        What is raised is the first of these that any shard ended with: IntegrityError, InputError,
        ShardwiseError, TryAgain.
        """
        self.report()
        left = len(self._waiting) + len(self.running)
        if not self.lost and not left:
            return
        for shard, (_, reason) in sorted(self.lost.items()):
            path = self._plan.results.log("multiply", shard)
            log.error("shard %s: %s (log: %s)", shard, reason, path)
        codes = {code for code, _ in self.lost.values()}
        error = next((_FINAL[code] for code in (3, 2, 1) if code in codes), TryAgain)
        parts = [f"{len(self.lost)} failed"] if self.lost else []
        parts += [f"{left} were not computed"] if left else []
        total = len(self.lost) + left + len(self.whole)
        raise error(f"of {total} shards {', '.join(parts)}; {len(self.whole)} are whole")


@contextlib.contextmanager
def holding(results: Results) -> Iterator[None]:
    """Be the only dispatcher on these results.

    Raises TryAgain if another one is at work, with what that one wrote about itself.
    """
    path, who = results.dispatching, ""
    with contextlib.suppress(OSError):
        who = path.read_bytes()[:_MOST_BYTES].decode(errors="replace").strip()
    busy = f"{results.root}: its shards are being computed by {who or 'another process'}; let it "
    with locks.take_lock(path, f"{busy}finish or end it, then run the same command again") as file:
        job = host.job(os.environ)
        words = f"process {os.getpid()} on {socket.gethostname()} since {clock(time.time())}"
        words += f", {job}" if job else ""
        # Only the lock counts: if the disk is full, nothing but this note is lost.
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"{words} ({shlex.join(sys.argv)})\n".encode(errors="replace"))
            file.flush()
        yield
