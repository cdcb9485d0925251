"""Where the time of a shard went: what the thread that computes it waits for, or does itself.

While it waits for reads, the disk holds the shard up; while it queues work or waits for the device,
the computation does; while it waits for writes, or commits, the disk again. The rest is waiting:
for another shard on the same device, or for a copy. Standard library only.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("read", "compute", "write")
_DIGITS = 6


class Stopwatch:
    """Seconds of one shard by what held it up.

    It began at ``unix`` in Unix time; setting the clock later changes nothing.
    """

    def __init__(self) -> None:
        self.unix, self._began = time.time(), time.perf_counter()
        self._seconds = defaultdict[str, float](float)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """What is inside is a stage of the shard; no two at once."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - began

    def end(self) -> float:
        """Seconds of Unix time now, as if the clock had not been set since the start."""
        return self.unix + time.perf_counter() - self._began

    def held(self, finished: float) -> dict[str, float]:
        """Seconds by phase, from the beginning to a moment that `end` has returned."""
        held = {stage: round(self._seconds[stage], _DIGITS) for stage in STAGES}
        # From the rounded figures, so that all add up.
        waiting = round(max(0.0, finished - self.unix - sum(held.values())), _DIGITS)
        return {"waiting": waiting, **held}
