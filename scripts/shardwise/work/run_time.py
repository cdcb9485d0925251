"""How long a job may still run, and whether another shard fits into that time."""

import signal
import time
from collections.abc import Callable
from types import FrameType

_SLACK = 1.25
"""Another shard is expected to take at most this many times the longest one so far."""

LEAVE_SECONDS = 30.0
"""Run time that a job keeps to start and end: schedulers kill without a second warning."""

heard: list[int] = []
"""The signals by which the scheduler has told this process that it will end its job."""


def heed(tell: Callable[[int], object] = lambda _: None) -> None:
    """Note such signals from now on, and tell somebody else of each."""

    def handle(number: int, _: FrameType | None) -> None:
        heard.append(number)
        tell(number)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handle)


class RunTime:
    """The run time of this job, until Unix time ``end`` or unlimited, and its longest shard."""

    def __init__(self, end: float | None) -> None:
        self._end, self._longest = end, 0.0

    def learn(self, seconds: float) -> None:
        """Note how long a shard took."""
        self._longest = max(self._longest, seconds)

    def suffices(self, shards: int) -> bool:
        """Whether one device can still compute a number of shards, one after another.

        With a limit, it is False for more than one shard until the first has ended.
        """
        if heard or self._end is None:
            return not heard
        if shards > 1 and not self._longest:
            return False
        return time.time() + _SLACK * self._longest * shards + LEAVE_SECONDS <= self._end
