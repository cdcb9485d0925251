"""A run in figures: where the time of all shards went, device by device and stage by stage.

What :mod:`shardwise.observe.advice` looks at. Receipts may be damaged or made up: a shard whose
numbers cannot be is left out, and no division is by zero.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from shardwise.errors import one_line
from shardwise.observe.observation import DONE, Observation, Sighting
from shardwise.plan.plan import Plan
from shardwise.records.timeline import PHASES, STAGES, Span, length, union
from shardwise.units import decimal, number

FEWEST_SHARDS, FEWEST_SECONDS = 3, 3.0
"""With less, a figure is chance."""

_MOST_SECONDS, _MOST_NUMBER = 1e9, 1e24
_MOST_LETTERS = 80


@dataclass(frozen=True)
class Used:
    """A device and its shards.

    Attributes
    ----------
    spans
        Times in which it had a shard, joined where they overlap, in order.
    """

    node: str
    name: str
    uuid: str | None
    shards: Sequence[Sighting]
    spans: Sequence[Span]

    @property
    def busy(self) -> float:
        """Seconds in which it had a shard."""
        return length(self.spans)

    @property
    def end(self) -> float:
        """When its last shard was done."""
        return self.spans[-1][1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between its shards where one process has ended and another begun."""
        found, last = [], None
        for shard in sorted(self.shards, key=lambda shard: shard.started):
            if last and shard.started > last.finished and not _same_process(last, shard):
                found.append(shard.started - last.finished)
            if last is None or shard.finished > last.finished:
                last = shard
        return found

    @property
    def bytes(self) -> int:
        """Of the input that went through it."""
        return sum(shard.bytes for shard in self.shards)

    def held(self, phase: str) -> float:
        """Seconds that a phase held its shards up."""
        return sum(_held(shard, phase) for shard in self.shards)

    def throttled(self) -> tuple[str, float]:
        """What slowed it down most, and its share of the time that was sampled."""
        seconds, sampled = dict[str, float](), 0.0
        for shard in self.shards:
            told = shard.telemetry or {}
            reasons = told.get("throttled_seconds")
            if not isinstance(reasons, Mapping):  # its driver does not tell
                continue
            sampled += amount(told.get("seconds"))
            for reason, lost in reasons.items():
                seconds[str(reason)] = seconds.get(str(reason), 0.0) + amount(lost)
        worst = max(seconds, key=lambda reason: seconds[reason], default="")
        return worst, min(1.0, seconds[worst] / sampled) if worst and sampled else 0.0


@dataclass(frozen=True)
class Run:
    """A run whose shards say where their time went.

    Attributes
    ----------
    shards
        Those that do.
    total
        Seconds of all shards together, without those that waited for another one on their device.
    active
        Seconds in which any shard was at work.
    held
        Seconds by phase, of all shards.
    busy, work
        By stage, of all shards.
    """

    seen: Observation
    plan: Plan
    shards: Sequence[Sighting]
    devices: Sequence[Used]
    total: float
    active: float
    held: Mapping[str, float]
    busy: Mapping[str, float]
    work: Mapping[str, float]
    nodes: Mapping[str, float] = field(default_factory=dict)

    @property
    def shares(self) -> dict[str, float]:
        """Share of the time by phase."""
        return {phase: seconds / self.total for phase, seconds in self.held.items()}

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs computed."""
        return any(device.uuid is not None for device in self.devices)

    def wall(self, seconds: float) -> float:
        """How much of the run's time some seconds of its shards are: several went on at once."""
        return seconds * self.active / self.total

    # Rates.

    def stage_rate(self, stage: str) -> float | None:
        """Work a second of a stage while a shard was at it."""
        return self.work[stage] / self.busy[stage] if self.busy[stage] > 0 else None

    def node_rate(self, stage: str) -> float | None:
        """Work a second of a node, all its shards together, while it had any."""
        seconds = sum(self.nodes.values())
        return self.work[stage] / seconds if seconds > 0 else None

    # Devices side by side.

    def peers(self, device: Used) -> list[Used]:
        """The other devices of its kind that have done enough to be compared with."""
        return [
            other for other in self.devices
            if other is not device and other.name == device.name and _enough(other)
        ]  # fmt: skip

    @cached_property
    def _paces(self) -> dict[str, list[float]]:
        """Seconds a byte of the devices of each kind, in order."""
        found: dict[str, list[float]] = {}
        for device in self.devices:
            if _enough(device):
                found.setdefault(device.name, []).append(device.busy / device.bytes)
        return {name: sorted(paces) for name, paces in found.items()}

    def slower(self, device: Used) -> float | None:
        """How many times as long as its peers a device took for its bytes; None without peers."""
        paces = self._paces.get(device.name, [])
        if not _enough(device) or len(paces) < 2:
            return None
        own = device.busy / device.bytes
        usual = _median_without(paces, bisect_left(paces, own))
        return own / usual if usual > 0 else None

    def where_slower(self, device: Used) -> tuple[str, float, float]:
        """The phase in which a device lost most, its seconds a GB there, and those of its peers."""
        peers, found = self.peers(device), []
        for phase in PHASES:
            own = device.held(phase) / device.bytes * 1e9
            usual = median([peer.held(phase) / peer.bytes * 1e9 for peer in peers])
            found.append((own - usual, phase, own, usual))
        _, phase, own, usual = max(found)
        return phase, own, usual


def of(seen: Observation) -> Run | None:
    """The figures of a run; None where too little was measured."""
    shards = [shard for shard in seen.shards.values() if _measured(shard)]
    held = {phase: sum(_held(shard, phase) for shard in shards) for phase in PHASES}
    own: dict[str, list[Sighting]] = {}
    for shard in shards:
        own.setdefault(shard.device.key, []).append(shard)
    used = [_used(some) for _, some in sorted(own.items())]
    # A shard that is read ahead waits for the one before it on its device: no time is lost by that.
    ahead = sum(shard.seconds or 0.0 for shard in shards) - sum(device.busy for device in used)
    held["waiting"] -= min(held["waiting"], max(0.0, ahead))
    total = sum(held.values())
    if seen.plan is None or len(shards) < FEWEST_SHARDS or total < FEWEST_SECONDS:
        return None
    nodes = {shard.device.node for shard in shards}
    active = length(_joined(shards))
    if active <= 0:
        return None
    return Run(
        seen, seen.plan, shards, used, total, active, held,
        {stage: _sum(shard.timeline.busy.get(stage) for shard in shards) for stage in STAGES},
        {stage: _sum(shard.timeline.work.get(stage) for shard in shards) for stage in STAGES},
        {n: length(_joined(s for s in shards if s.device.node == n)) for n in sorted(nodes)},
    )  # fmt: skip


def _measured(shard: Sighting) -> bool:
    """Whether a shard is done and its times are such as there can be."""
    if shard.state != DONE or shard.timeline is None or shard.device is None:
        return False
    times = shard.started, shard.finished
    known = None not in [number(t, _MOST_NUMBER) for t in times]
    return known and 0 < (shard.seconds or 0.0) < _MOST_SECONDS and shard.bytes > 0


def _held(shard: Sighting, phase: str) -> float:
    return amount(shard.timeline.held.get(phase))


def _used(shards: Sequence[Sighting]) -> Used:
    device = shards[0].device
    return Used(device.node, device.name, device.uuid, shards, _joined(shards))


def _joined(shards: Iterable[Sighting]) -> list[Span]:
    """The times of some shards, joined where they overlap."""
    return union((shard.started, shard.finished) for shard in shards)


def _same_process(one: Sighting, other: Sighting) -> bool:
    return one.process is not None and one.process == other.process


def _enough(device: Used) -> bool:
    """Whether a device has done more than one shard, whose first may have waited for its start."""
    return len(device.shards) >= 2 and device.bytes > 0 and device.busy > 0


def _median_without(ordered: Sequence[float], left_out: int) -> float:
    """The median of all numbers but one; there may be 10,000 devices to ask this of."""
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    return sum(ordered[i + (i >= left_out)] for i in (low, high)) / 2


def _sum(values: Iterable[Any]) -> float:
    return math.fsum(map(amount, values))


def amount(value: Any) -> float:
    """A value as a number from 0 on; 0 for what is none."""
    return max(0.0, number(value, _MOST_NUMBER) or 0.0)


# For people.


def clean(text: str) -> str:
    """A name from a receipt without what would break its line; its length has an end."""
    return one_line(text[:_MOST_LETTERS])


def percent(share: float) -> str:
    """A share, such as ``92 %``."""
    return f"{100 * share:.0f} %"


def rate(value: float) -> str:
    """Bytes a second, such as ``3.9 GB/s``."""
    return decimal(value, "B/s")


def size(value: float) -> str:
    """Bytes in decimal units, as rates of disks are given."""
    return decimal(value, "B")


def span(seconds: float) -> str:
    """A time, such as ``41 s``, ``3.2 min`` or ``5.1 h``."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
