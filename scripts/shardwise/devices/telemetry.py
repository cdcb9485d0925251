"""What a device did during a shard: samples of its gauge, their summary, and energy in joules.

See docs/telemetry.md for what the numbers mean. Standard library only, as in
`shardwise.devices.nvml`.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from shardwise.devices.gauge import Gauge, Sample
from shardwise.records.receipts import ProductReceipt

SUMMED = (
    "utilisation", "memory_bytes", "power_watts", "temperature_celsius", "clock_sm_hertz",
    "clock_memory_hertz",
)  # fmt: skip
"""What a receipt has mean and maximum of, and a live file the value now."""

_DIGITS = 4

_Points = list[tuple[float, float]]
"""Seconds since the shard began, each with the value then."""


class Recorder:
    """The samples of one shard, which began at this moment of `time.perf_counter`."""

    def __init__(self, gauge: Gauge, began: float) -> None:
        self._gauge, self._began = gauge, began
        self._samples: list[tuple[float, Sample]] = []

    def sample(self) -> Sample:
        """Take a sample, and return it."""
        sample = self._gauge.sample()
        self._samples.append((time.perf_counter() - self._began, sample))
        return sample

    def summarize(self) -> dict[str, Any]:
        """What the receipt says."""
        moments = [at for at, _ in self._samples]
        total = [size for _, size in self._points("memory_total_bytes")]
        return {
            "samples": len(moments),
            "seconds": round(moments[-1] - moments[0], _DIGITS) if moments else 0.0,
            **{name: _mean_and_max(self._points(name)) for name in SUMMED},
            "memory_total_bytes": total[-1] if total else None,
            "throttled_seconds": self._throttled(),
            "ecc_corrected": self._risen("ecc_corrected"),
            "ecc_uncorrected": self._risen("ecc_uncorrected"),
            "energy_joules": self._energy(),
        }

    def _points(self, name: str) -> list[tuple[float, Any]]:
        """The values of a quantity, where the samples have one."""
        pairs = ((at, getattr(sample, name)) for at, sample in self._samples)
        return [(at, value) for at, value in pairs if value is not None]

    def _throttled(self) -> dict[str, float] | None:
        """Half of the time between two samples is as the first of them, half as the second."""
        told, seconds = self._points("throttled"), Counter[str]()
        for (at, before), (then, after) in pairwise(told):
            for name in (*before, *after):
                seconds[name] += (then - at) / 2  # type: ignore[assignment]
        return {name: round(seconds[name], _DIGITS) for name in sorted(seconds)} if told else None

    def _risen(self, name: str) -> float | None:
        """By how much a counter has risen; None if a sample lacks it, or it was set back."""
        values = [value for _, value in self._points(name)]
        if len(values) < max(2, len(self._samples)):
            return None
        risen: float = values[-1] - values[0]
        return round(risen, _DIGITS) if risen >= 0 else None

    def _energy(self) -> float | None:
        """By the device's own counter, or by its power where it has none."""
        if self._points("energy_joules"):
            return self._risen("energy_joules")
        points = self._points("power_watts")
        known = len(points) > 1 and len(points) == len(self._samples)
        return round(_area(points), _DIGITS) if known else None


def _area(points: _Points) -> float:
    """By the rule of trapezoids."""
    return sum((then - at) * (one + two) / 2 for (at, one), (then, two) in pairwise(points))


def _mean_and_max(points: _Points) -> dict[str, float] | None:
    """The mean over time and the maximum; None if nothing is known."""
    if not points:
        return None
    values, seconds = [value for _, value in points], points[-1][0] - points[0][0]
    mean = _area(points) / seconds if seconds else math.fsum(values) / len(values)
    return {"mean": round(mean, _DIGITS), "max": max(values)}


def energy(receipts: Iterable[ProductReceipt]) -> dict[str, float | None]:
    """The energy of all shards whose receipts tell one, for the summary: joules, and how many."""
    answers = [receipt.telemetry["energy_joules"] for receipt in receipts if receipt.telemetry]
    joules = [answer for answer in answers if answer is not None]
    total = round(math.fsum(joules), _DIGITS) if joules else None
    return {"energy_joules": total, "energy_shards": len(joules)}
