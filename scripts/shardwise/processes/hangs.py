"""Which worker processes hang: stopped, or waiting in the kernel for what never comes. On Linux.

The kernel counts how often it has switched to a thread. A thread that is stopped (SIGSTOP), or that
waits where no signal reaches it (for a driver or a disk) and is not switched to any more, hangs. No
long computation, no function that sleeps for hours and no slow disk is taken for it.
"""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

WARNED_AFTER = 0.2  # of the limit: then a process that hangs is spoken of
_LOOKS = 60  # within the limit
_HOW = {"T": "has been stopped", "D": "has hung in the kernel, in a driver or on a disk,"}
_STATUS = re.compile(r"^(?:State|(?:non)?voluntary_ctxt_switches):\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Hang:
    """How a process hangs, and for how many seconds."""

    how: str
    seconds: float


@dataclass
class Watch:
    """Remembers since when threads hang; after `limit` seconds a process is given up."""

    limit: float
    _since: dict[tuple[int, ...], tuple[str, float]] = field(default_factory=dict)
    _next: float = 0.0

    def look(self, processes: Iterable[int], now: float) -> dict[int, Hang]:
        """The processes that hang, by a clock that only grows; {} between two looks."""
        if now < self._next:
            return {}
        self._next = now + self.limit / _LOOKS
        waiting = sorted(thread for pid in processes for thread in _waiting(pid))
        self._since = {key: self._since.get(key, (state, now)) for key, state in waiting}
        longest: dict[int, Hang] = {}
        for (pid, *_), (state, since) in self._since.items():
            if pid not in longest or now - since > longest[pid].seconds:
                longest[pid] = Hang(_HOW[state], now - since)
        return longest


def _waiting(pid: int) -> list[tuple[tuple[int, ...], str]]:
    """The threads of a process that may hang: its switches so far, and its state, of each."""
    threads = []
    with contextlib.suppress(OSError):  # it has ended, or this is not Linux
        for folder in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                status = (folder / "status").read_text("ascii", "replace")
                state, *switches = _STATUS.findall(status)
                if state in _HOW:
                    threads.append(((pid, int(folder.name), *map(int, switches)), state))
    return threads
