"""Where the time of a shard went: the spans in which its stages were at work, from any thread.

Stages overlap, so each moment counts for the first of these that is at work then: compute, which is
what a shard is for; upload, download, as the device waits for its own link; write, read, as it
waits for a disk; the host's work on what was read counts as reading. The rest is waiting: for
memory, compilers or another shard on the same device. Standard library only.
"""

import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

READ, UPLOAD, COMPUTE, DOWNLOAD, WRITE = "read", "upload", "compute", "download", "write"
STAGES = READ, UPLOAD, COMPUTE, DOWNLOAD, WRITE
"""The stages of the pipeline, in the order in which bytes go through them."""

PHASES = ("waiting", *STAGES)
"""What holds a shard up, in the order in which its bar is drawn."""

MOST_SPANS = 8192
"""The most spans of a stage; a shard with more forgets the shorter half of its gaps."""

_FIRST = COMPUTE, UPLOAD, DOWNLOAD, WRITE, READ
_DIGITS = 6

Span = tuple[float, float]


class Stopwatch:
    """When the stages of one shard were at work, from any thread.

    It began at ``unix`` in Unix time, and at ``began`` by `time.perf_counter`, which times all
    spans, so that setting the clock changes none. ``matrices`` says how many were multiplied and
    checked so far.
    """

    def __init__(self) -> None:
        self.unix, self.began = time.time(), time.perf_counter()
        self.matrices = 0.0
        self._spans = {stage: Spans() for stage in STAGES}
        self._lock = threading.Lock()

    def note(self, stage: str, span: Span) -> None:
        """Note when a stage was at work."""
        with self._lock:
            self._spans[stage].add(span)

    def timed(self, stage: str, work: Callable[[], Any]) -> Any:
        """Do the work of a stage, and note when."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.note(stage, (began, time.perf_counter()))

    def end(self) -> float:
        """Seconds of Unix time now, as if the clock had not been set since the start."""
        return self.unix + time.perf_counter() - self.began

    def held(self, finished: float) -> dict[str, float]:
        """Seconds by phase, from the beginning to a moment that `end` has returned.

        Each moment counts once, so they add up to all. The commit after the last stage counts as a
        write.
        """
        low, high = self.began, self.began + finished - self.unix
        with self._lock:
            spans = {stage: own.within(low, high) for stage, own in self._spans.items()}
        last = max((own[-1][1] for own in spans.values() if own), default=low)
        spans[WRITE].append((last, high))
        held: dict[str, float] = {}
        covered: list[Span] = []
        before = 0.0
        for stage in _FIRST:
            covered = union([*covered, *spans[stage]])
            total = length(covered)
            held[stage] = round(max(0.0, total - before), _DIGITS)
            before = total
        # From the rounded figures, so that all add up.
        waiting = round(max(0.0, high - low - sum(held.values())), _DIGITS)
        return {"waiting": waiting, **{stage: held[stage] for stage in STAGES}}


class Spans:
    """The spans of one stage, which may overlap and be added late."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, span: Span) -> None:
        """Add a span; if there are too many, the shorter half of the gaps is closed."""
        self._spans.append(span)
        if len(self._spans) > MOST_SPANS:
            spans = self._spans = union(self._spans)
            if 2 * len(spans) > MOST_SPANS:
                gaps = sorted(after[0] - before[1] for before, after in pairwise(spans))
                self._spans = union(spans, gaps[len(gaps) // 2])

    def within(self, low: float, high: float) -> list[Span]:
        """The spans, or the parts of them, between two moments, joined."""
        return [(max(a, low), min(b, high)) for a, b in union(self._spans) if a < high and b > low]


def union(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """The same times as spans that do not touch, in order; gaps up to ``gap`` are closed."""
    joined: list[Span] = []
    for began, ended in sorted(spans):
        if joined and began <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(ended, joined[-1][1]))
        else:
            joined.append((began, ended))
    return joined


def length(spans: Iterable[Span]) -> float:
    """Seconds of spans that do not overlap."""
    return sum(ended - began for began, ended in spans)
