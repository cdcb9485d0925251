"""Where the time of a shard went: what the thread that computes it waits for, or does itself.

docs/internals/receipts.md says what counts as what. Standard library only.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("read", "compute", "write")


class Stopwatch:
    """Seconds of one shard by what held it up, from Unix time ``unix`` on by a steady clock."""

    def __init__(self) -> None:
        self.unix, self._began = time.time(), time.perf_counter()
        self._seconds = dict.fromkeys(STAGES, 0.0)

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
        held = {stage: round(self._seconds[stage], 6) for stage in STAGES}
        # From the rounded figures, so that all add up.
        return {"waiting": round(max(0.0, finished - self.unix - sum(held.values())), 6), **held}
