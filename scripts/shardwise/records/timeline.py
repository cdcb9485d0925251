"""Where the time of a shard went: the spans in which its stages were at work, from any thread.

Stages overlap, so each moment is given to the first of these at work then: compute, which is what
a shard is for; upload, download, as the device waits for its own link; write, read, as it waits for
a disk; checking what was read, a part of reading it. What is left is waiting: for memory, compilers
or another shard on the same device. Standard library only.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
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
_DIGITS = 6

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

Span = tuple[float, float]


class Stopwatch:
    """When the stages of one shard were at work, from any thread, and what they did.

    It was begun at ``unix`` in Unix time, at ``began`` by `time.perf_counter`, as all spans are; so
    a clock that is set meanwhile makes no second longer. ``seconds`` says how long each was busy or
    waited, added up over its threads; ``matrices`` how many were multiplied and checked so far.
    """

    def __init__(self) -> None:
        self.unix, self.began = time.time(), time.perf_counter()
        self.seconds = defaultdict[str, float](float)
        self.matrices = 0.0
        self._spans = {stage: Spans() for stage in _FIRST}
        self._work = Counter[str]()
        self._lock = threading.Lock()

    def note(self, what: str, span: Span, work: int = 0) -> None:
        """Note when something went on, and how much was done: bytes, or operations."""
        began, ended = span
        with self._lock:
            self.seconds[what] += ended - began
            if stage := _STAGES.get(what):
                self._work[stage] += work
                self._spans[stage].add(span)

    def timed(self, what: str, work: Callable[[], Any], nbytes: int = 0) -> Any:
        """Do something, and note how long it took, and how many bytes it moved."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.note(what, (began, time.perf_counter()), nbytes)

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
            spans = {stage: own.within(low, high) for stage, own in self._spans.items()}
        last = max((own[-1][1] for own in spans.values() if own), default=low)
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
    """The spans of one stage, which may overlap and come late.

    ``closed`` are the seconds of the gaps between them that were forgotten.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self.closed = 0.0

    def add(self, span: Span) -> None:
        """Add a span; past the most that are kept, the shorter half of the gaps is closed."""
        self._spans.append(span)
        if len(self._spans) > MOST_SPANS:
            spans = self._spans = union(self._spans)
            if 2 * len(spans) > MOST_SPANS:
                gaps = sorted(after[0] - before[1] for before, after in pairwise(spans))
                self._spans = union(spans, gaps[len(gaps) // 2])
                self.closed += length(self._spans) - length(spans)

    def within(self, low: float, high: float) -> list[Span]:
        """Those between two moments, or the parts of them, joined."""
        return [(max(a, low), min(b, high)) for a, b in union(self._spans) if a < high and b > low]


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


def union(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """The same times as spans that do not touch, in order; no gap up to a length is left."""
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
