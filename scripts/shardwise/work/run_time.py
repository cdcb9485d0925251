"""How long a job may still run, and whether another shard fits into that time."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SLACK = 1.25
"""Another shard is expected to take at most this many times the longest one so far."""

LEAVE_SECONDS = 15.0
"""Run time that a job keeps to end itself: schedulers kill without a second warning."""

_WARNINGS = signal.SIGUSR1, signal.SIGUSR2


@contextmanager
def heeding(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a handler, and then the previous one, on signals that say that this job will end."""
    before = {number: signal.getsignal(number) for number in _WARNINGS}

    def heed(number: int, frame: FrameType | None) -> None:
        handler(number, frame)
        if callable(earlier := before[signal.Signals(number)]):
            earlier(number, frame)

    for number in _WARNINGS:
        signal.signal(number, heed)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class RunTime:
    """The run time of this job, until Unix time ``end`` or unlimited, and its longest shard."""

    def __init__(self, end: float | None) -> None:
        self._end, self._longest, self.closed = end, 0.0, False

    def learn(self, seconds: float) -> None:
        """Note how long a shard took."""
        self._longest = max(self._longest, seconds)

    def close(self, *_: int | FrameType | None) -> None:
        """Let no more shards begin: the scheduler has signalled that it will end the job."""
        self.closed = True

    def suffices(self, shards: int) -> bool:
        """Whether one device can still compute a number of shards, one after another.

        With a limit, it is False for more than one shard until the first has ended.
        """
        if self._end is None or self.closed:
            return not self.closed
        if shards > 1 and not self._longest:
            return False
        return time.time() + _SLACK * self._longest * shards + LEAVE_SECONDS <= self._end
