"""Where the time of a shard went: what the thread that computes it waits for, or does itself.

docs/internals/receipts.md says what counts as what. Standard library only.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of one shard by what held it up, from Unix time ``unix`` on by a steady clock."""

    def __init__(self) -> None:
        self.unix, self._began = time.time(), time.perf_counter()
        self._seconds = {"read": 0.0, "compute": 0.0, "write": 0.0}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time of the body as a stage of the shard; stages must not overlap."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - began

    def end(self) -> float:
        """The Unix time now, as if the clock had not been set since the start."""
        return self.unix + time.perf_counter() - self._began

    def held(self, finished: float) -> dict[str, float]:
        """Seconds of each stage and of waiting, from the start to a time that `end` returned."""
        waiting = finished - self.unix - sum(self._seconds.values())
        return {"waiting": max(0.0, waiting), **self._seconds}
