"""Where the time of a shard went: the spans in which its stages were at work, from any thread.

Stages overlap, so each moment counts for the first of these that is at work then: compute, which is
what a shard is for; upload, download, as the device waits for its own link; write, read, as it
waits for a disk; check, which counts as reading. The rest is waiting: for memory, compilers or
another shard on the same device. Standard library only.
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
"""The host's work on what was read; it holds a shard up as reading does, but moves no bytes."""

MOST_SPANS = 8192
"""The most spans of a stage; a shard with more forgets the shorter half of its gaps."""

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
"""The timeline's stage for each entry of a stopwatch; waiting belongs to none."""

Span = tuple[float, float]


class Stopwatch:
    """When the stages of one shard were at work, from any thread, and what they did.

    It began at ``unix`` in Unix time, and at ``began`` by `time.perf_counter`, which times all
    spans, so that setting the clock changes none. ``seconds`` says how long each was busy or
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
        """Note when something was at work, and how much it did: bytes, or operations."""
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
        """Seconds of Unix time now, as if the clock had not been set since the start."""
        return self.unix + time.perf_counter() - self.began

    def to_json(self, finished: float) -> dict[str, Any]:
        """What the receipt says, from the beginning to a moment that `end` has returned.

        ``held`` has seconds by phase, each moment once; ``busy`` the seconds in which each stage
        was at work; ``work`` what it did. The commit after the last stage counts as a write.
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
    """The spans of one stage, which may overlap and be added late.

    ``closed`` has the seconds of the gaps that were forgotten.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self.closed = 0.0

    def add(self, span: Span) -> None:
        """Add a span; if there are too many, the shorter half of the gaps is closed."""
        self._spans.append(span)
        if len(self._spans) > MOST_SPANS:
            spans = self._spans = union(self._spans)
            if 2 * len(spans) > MOST_SPANS:
                gaps = sorted(after[0] - before[1] for before, after in pairwise(spans))
                self._spans = union(spans, gaps[len(gaps) // 2])
                self.closed += length(self._spans) - length(spans)

    def within(self, low: float, high: float) -> list[Span]:
        """The spans, or the parts of them, between two moments, joined."""
        return [(max(a, low), min(b, high)) for a, b in union(self._spans) if a < high and b > low]


def _held(spans: Mapping[str, list[Span]], seconds: float) -> dict[str, float]:
    """Seconds that each stage holds, in the order in which stages claim a moment."""
    held: dict[str, float] = dict.fromkeys((*STAGES, CHECK), 0.0)
    covered: list[Span] = []
    before = 0.0
    for stage in _FIRST:
        covered = union([*covered, *spans[stage]])
        total = length(covered)
        held[READ if stage == CHECK else stage] += total - before
        before = total
    rounded = {stage: round(max(0.0, held[stage]), _DIGITS) for stage in STAGES}
    # From the rounded figures, so that all add up.
    return {"waiting": round(max(0.0, seconds - sum(rounded.values())), _DIGITS), **rounded}


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
