"""Which worker processes hang: stopped, or waiting in the kernel for what never comes. On Linux.

The kernel itself gives the sign of life: it counts how often it has switched to a thread and away
from it. A thread that is stopped (SIGSTOP), or that waits where no signal reaches it (for a driver
or a disk) and is not switched to any more, hangs. So nothing else is taken for it: no computation,
however long, no function that sleeps, or holds Python's lock, for hours, and no slow disk whose
every single answer comes in time. Standard library only.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

WARNED_AFTER = 0.2
"""The part of the limit after which a process that hangs is spoken of."""

_LOOKS = 60
"""How often processes are looked at within the limit."""

_HOW = {"T": "has been stopped", "D": "has hung in the kernel, in a driver or on a disk,"}
_STATUS = re.compile(r"^(?:State|(?:non)?voluntary_ctxt_switches):\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Hang:
    """How a process hangs, and for how many seconds."""

    how: str
    seconds: float


@dataclass
class Watch:
    """Remembers since when threads hang.

    Parameters
    ----------
    limit
        Seconds after which a process is given up.
    """

    limit: float
    _since: dict[tuple[int, ...], tuple[str, float]] = field(default_factory=dict)
    _next: float = 0.0

    def look(self, processes: Iterable[int], now: float) -> dict[int, Hang]:
        """The processes that hang; now and then, nothing is looked at in between.

        Parameters
        ----------
        now
            Seconds that only grow.
        """
        if now < self._next:
            return {}
        self._next = now + self.limit / _LOOKS
        seen = {key: state for pid in processes for key, state in _waiting(pid)}
        self._since = {
            key: self._since.get(key, (state, now)) for key, state in sorted(seen.items())
        }
        longest: dict[int, Hang] = {}
        for (pid, *_), (state, since) in self._since.items():
            if pid not in longest or now - since > longest[pid].seconds:
                longest[pid] = Hang(_HOW[state], now - since)
        return longest


def _waiting(pid: int) -> list[tuple[tuple[int, ...], str]]:
    """The threads of a process that may hang: with its switches so far each, and its state."""
    found = []
    with contextlib.suppress(OSError):  # it has ended, or this is not Linux
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):
                with open(
                    f"/proc/{pid}/task/{thread}/status", encoding="ascii", errors="replace"
                ) as file:
                    state, *switches = _STATUS.findall(file.read())
                if state in _HOW:
                    found.append(((pid, int(thread), *map(int, switches)), state))
    return found
