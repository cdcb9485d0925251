"""What a device did during a shard: samples of its gauge, their summary, and energy in joules.

See docs/telemetry.md for what the numbers mean. Standard library only, as in
`shardwise.devices.nvml`.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from shardwise.devices.gauge import Gauge, Sample
from shardwise.records.receipts import ProductReceipt

SUMMED = (
    "utilisation", "memory_bytes", "power_watts", "temperature_celsius", "clock_sm_hertz",
    "clock_memory_hertz",
)  # fmt: skip
"""What a receipt has mean and maximum of, and a live file the value now."""

_COUNTED = ("ecc_corrected", "ecc_uncorrected", "energy_joules")
_DIGITS = 4


class _Trace:
    """One quantity: what it came to so far, by the rule of trapezoids."""

    def __init__(self) -> None:
        self.area = self.seconds = self._sum = 0.0
        self.top, self._count = -math.inf, 0
        self.first: float | None = None
        self.last: float | None = None
        self._at = 0.0
        self._missed = False

    def add(self, at: float, value: float | None) -> None:
        """Take a sample."""
        if value is None:
            self._missed = True
            return
        if self.last is None:
            self.first = value
        else:
            self.area += (at - self._at) * (value + self.last) / 2
            self.seconds += at - self._at
        self._at, self.last, self.top = at, value, max(self.top, value)
        self._sum, self._count = self._sum + value, self._count + 1

    def mean_and_max(self) -> dict[str, float] | None:
        """Its mean and its maximum; None where nothing is known."""
        if self.last is None:
            return None
        mean = self.area / self.seconds if self.seconds else self._sum / self._count
        return {"mean": round(mean, _DIGITS), "max": self.top}

    def risen(self) -> float | None:
        """By how much a counter has risen; None where a sample lacks it, or it was set back."""
        if self._missed or self._count < 2 or self.first is None or self.last is None:
            return None
        risen = self.last - self.first
        return round(risen, _DIGITS) if risen >= 0 else None

    def integral(self) -> float | None:
        """The area of all samples; None where one lacks a value."""
        return round(self.area, _DIGITS) if self.seconds and not self._missed else None


class Recorder:
    """The samples of one shard, which began at this moment of `time.perf_counter`."""

    def __init__(self, gauge: Gauge, began: float) -> None:
        self._gauge, self._began = gauge, began
        self._traces = {name: _Trace() for name in (*SUMMED, *_COUNTED)}
        self._throttled: Counter[str] | None = None
        self._samples, self._first, self._last = 0, 0.0, 0.0
        self._before: tuple[str, ...] = ()
        self._total: int | None = None

    def sample(self) -> Sample:
        """Take a sample, and return it."""
        sample = self._gauge.sample()
        at = time.perf_counter() - self._began
        if not self._samples:
            self._first = self._last = at
        for name, trace in self._traces.items():
            trace.add(at, getattr(sample, name))
        self._note_throttles(at - self._last, sample.throttled)
        self._total = sample.memory_total_bytes or self._total
        self._samples, self._last = self._samples + 1, at
        return sample

    def _note_throttles(self, seconds: float, reasons: tuple[str, ...] | None) -> None:
        """Half of the time between two samples is as the first of them, half as the second."""
        if reasons is None:
            return
        if self._throttled is None:
            self._throttled = Counter()
        for names in (self._before, reasons) if seconds else ():
            self._throttled.update(dict.fromkeys(names, seconds / 2))
        self._before = reasons

    def summarize(self) -> dict[str, Any]:
        """What the receipt says."""
        throttled = None
        if self._throttled is not None:
            throttled = {name: round(s, _DIGITS) for name, s in sorted(self._throttled.items())}
        return {
            "samples": self._samples,
            "seconds": round(self._last - self._first, _DIGITS),
            **{name: self._traces[name].mean_and_max() for name in SUMMED},
            "memory_total_bytes": self._total,
            "throttled_seconds": throttled,
            "ecc_corrected": self._traces["ecc_corrected"].risen(),
            "ecc_uncorrected": self._traces["ecc_uncorrected"].risen(),
            "energy_joules": self._energy(),
        }

    def _energy(self) -> float | None:
        """By the device's own counter, or by its power where it has none."""
        if self._traces["energy_joules"].first is not None:
            return self._traces["energy_joules"].risen()
        return self._traces["power_watts"].integral()


def energy(receipts: Iterable[ProductReceipt]) -> dict[str, float | None]:
    """The energy of all shards whose receipts tell one, for the summary: joules, and how many."""
    answers = [receipt.telemetry["energy_joules"] for receipt in receipts if receipt.telemetry]
    joules = [answer for answer in answers if answer is not None]
    total = round(math.fsum(joules), _DIGITS) if joules else None
    return {"energy_joules": total, "energy_shards": len(joules)}
