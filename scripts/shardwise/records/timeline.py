"""Where the time of a shard went: the spans in which its stages were at work, from any thread.

Stages overlap, so each moment is given to the first of these at work then: compute, which is what
a shard is for; upload, download, as the device waits for its own link; write, read, as it waits for
a disk; checking what was read, a part of reading it. What is left is waiting: for memory, compilers
or another shard on the same device. Standard library only.
"""

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

READ, UPLOAD, COMPUTE, DOWNLOAD, WRITE = "read", "upload", "compute", "download", "write"
STAGES = READ, UPLOAD, COMPUTE, DOWNLOAD, WRITE
"""The stages of the pipeline, in the order in which bytes go through them."""

PHASES = ("waiting", *STAGES)
"""What holds a shard up, in the order in which its bar is drawn."""

CHECK = "check"
"""Work of the host on what was read: it holds a shard up as reading does, but moves no bytes."""

MOST_SPANS = 8192
"""Of a stage, at once: a shard with more forgets when its shortest gaps were, half of them."""

_FIRST = COMPUTE, UPLOAD, DOWNLOAD, WRITE, READ, CHECK
_TOUCHING = 1e-5  # seconds: no pause, but the way from one call to the next
_DIGITS = 6

Span = tuple[float, float]


class StageTimeline:
    """The spans of one shard, by stage, and what was done in them.

    It was begun at ``unix`` in Unix time, at ``began`` by `time.perf_counter`, as all spans are; so
    a clock that is set meanwhile makes no second longer.
    """

    def __init__(self) -> None:
        self.unix, self.began = time.time(), time.perf_counter()
        self._spans = {stage: Spans() for stage in _FIRST}
        self._work = Counter[str]()
        self._lock = threading.Lock()

    def note(self, stage: str, began: float, ended: float, work: int = 0) -> None:
        """Note that a stage was at work, and how much it did: bytes, or operations."""
        with self._lock:
            self._work[stage] += work
            self._spans[stage].add(began, ended)

    def end(self) -> float:
        """Seconds of Unix time now, if no clock was set meanwhile."""
        return self.unix + time.perf_counter() - self.began

    def to_json(self, finished: float) -> dict[str, Any]:
        """What the receipt says of it, from the beginning to a moment that `end` has named.

        ``held`` are seconds by phase, each moment once; ``busy`` seconds in which each stage was at
        work; ``work`` what it did. After the last stage the file is committed: that is a write.
        """
        low, high = self.began, self.began + finished - self.unix
        with self._lock:
            spans = {stage: intervals.within(low, high) for stage, intervals in self._spans.items()}
        last = max((intervals[-1][1] for intervals in spans.values() if intervals), default=low)
        spans[WRITE] = union([*spans[WRITE], (last, high)])
        busy = {
            stage: round(max(0.0, length(spans[stage]) - self._spans[stage].closed), _DIGITS)
            for stage in STAGES
        }
        return {
            "held": _held(spans, high - low),
            "busy": busy,
            "work": {stage: self._work[stage] for stage in STAGES},
        }


class Spans:
    """The spans of one stage: none touches another, the earliest comes first.

    ``closed`` are the seconds of the gaps between them that were forgotten.
    """

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self.closed = 0.0

    def add(self, began: float, ended: float) -> None:
        """Add a span, which may overlap others and may come late."""
        begins, ends = self._begins, self._ends
        first = bisect_left(ends, began - _TOUCHING)
        last = bisect_right(begins, ended + _TOUCHING)
        if first < last:
            began, ended = min(began, begins[first]), max(ended, ends[last - 1])
        begins[first:last], ends[first:last] = [began], [ended]
        if len(begins) > MOST_SPANS:
            self._forget()

    def _forget(self) -> None:
        """Close the shorter half of the gaps."""
        gaps = [begin - end for begin, end in zip(self._begins[1:], self._ends, strict=False)]
        order = sorted(range(len(gaps)), key=gaps.__getitem__)
        short, wide = order[: len(gaps) // 2], sorted(order[len(gaps) // 2 :])
        self.closed += math.fsum(gaps[i] for i in short)
        self._begins = [self._begins[0], *(self._begins[i + 1] for i in wide)]
        self._ends = [*(self._ends[i] for i in wide), self._ends[-1]]

    def within(self, low: float, high: float) -> list[Span]:
        """All of them, or the parts of them, between two moments."""
        every = zip(self._begins, self._ends, strict=True)
        return [(max(a, low), min(b, high)) for a, b in every if a < high and b > low]


def _held(spans: Mapping[str, list[Span]], seconds: float) -> dict[str, float]:
    """Seconds that each stage adds to those before it in the order of who holds a moment."""
    held: dict[str, float] = dict.fromkeys((*STAGES, CHECK), 0.0)
    covered: list[Span] = []
    before = 0.0
    for stage in _FIRST:
        covered = union([*covered, *spans[stage]])
        total = length(covered)
        held[READ if stage == CHECK else stage] += total - before
        before = total
    rounded = {stage: round(max(0.0, held[stage]), _DIGITS) for stage in STAGES}
    # Of what is rounded, so that they add up.
    return {"waiting": round(max(0.0, seconds - sum(rounded.values())), _DIGITS), **rounded}


def union(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans that do not touch, in order."""
    joined: list[Span] = []
    for began, ended in sorted(spans):
        if joined and began <= joined[-1][1]:
            if ended > joined[-1][1]:
                joined[-1] = (joined[-1][0], ended)
        else:
            joined.append((began, ended))
    return joined


def length(spans: Iterable[Span]) -> float:
    """Seconds of spans that do not overlap."""
    return sum(ended - began for began, ended in spans)


_STAGES = {
    "read": READ,
    "checksum": CHECK,
    "witness": CHECK,
    "upload": UPLOAD,
    "multiply": COMPUTE,
    "download": DOWNLOAD,
    "write": WRITE,
}
"""What a timeline calls the stages of a stopwatch; whatever waits is at work nowhere."""


class Stopwatch:
    """Seconds that each stage was busy, added up over its threads, and when that was.

    ``matrices`` is how many were multiplied and checked so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.timeline = StageTimeline()
        self.matrices = 0.0
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """Note that a stage was busy."""
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def note(self, stage: str, span: Span, work: int = 0) -> None:
        """Note when a stage was busy, by `time.perf_counter`, and what it did meanwhile."""
        began, ended = span
        self.add(stage, ended - began)
        if stage in _STAGES:
            self.timeline.note(_STAGES[stage], began, ended, work)

    def timed(self, stage: str, work: Callable[[], Any], nbytes: int = 0) -> Any:
        """Do something, and note how long it took, and how many bytes it moved."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.note(stage, (began, time.perf_counter()), nbytes)
