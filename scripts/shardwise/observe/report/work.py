"""What each device did and when: the shards of a run, by who computed them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from shardwise.observe.observation import DONE, RUNNING, Device, Observation, Sighting
from shardwise.observe.report import words
from shardwise.records.timeline import PHASES, Span, length, union
from shardwise.units import number

_BREAK_SHARE = 0.25
"""A pause of all devices this much longer than all the work beside it is a break between runs."""
_BREAK_SECONDS = 120.0


@dataclass(frozen=True)
class Bar:
    """One shard on its device.

    Attributes
    ----------
    lane
        Shards of a device that overlap in time have different ones, from 0 on.
    held
        Seconds by phase; None where the receipt does not say.
    """

    seen: Sighting
    begin: float
    end: float
    lane: int
    held: dict[str, float] | None

    @property
    def seconds(self) -> float:
        """How long it took, or has taken until now."""
        return self.end - self.begin


@dataclass(frozen=True)
class DeviceWork:
    """All that a device did."""

    device: Device | None
    bars: tuple[Bar, ...]

    @property
    def name(self) -> str:
        """As a row's name."""
        return words.device(self.device)

    @cached_property
    def lanes(self) -> int:
        """How many of its shards overlap at most."""
        return 1 + max(bar.lane for bar in self.bars)

    @cached_property
    def busy(self) -> list[Span]:
        """When it had a shard at work."""
        return union((bar.begin, bar.end) for bar in self.bars)

    @cached_property
    def held(self) -> dict[str, float]:
        """Seconds by phase, over the shards whose receipts say it."""
        return held_by(self.bars)

    @cached_property
    def matrix_rate(self) -> float | None:
        """Matrices a second in a typical shard, times the shards that it had at once.

        The median, so that one straggler makes no device slow.
        """
        done = [bar for bar in self.bars if bar.seen.state == DONE and bar.seconds > 0]
        if not done:
            return None
        spent = length(union((bar.begin, bar.end) for bar in done))
        at_once = sum(bar.seconds for bar in done) / spent
        return median(bar.seen.matrices / bar.seconds for bar in done) * at_once


@dataclass(frozen=True)
class Run:
    """All devices, and the stretches of time in which any was at work.

    Attributes
    ----------
    untimed
        Whether there was work whose times nothing tells: attempts that failed, and shards whose
        receipt cannot be used.
    """

    devices: tuple[DeviceWork, ...]
    stretches: tuple[Span, ...]
    untimed: bool = False

    @property
    def begin(self) -> float | None:
        """When the first shard was begun."""
        return self.stretches[0][0] if self.stretches else None

    @property
    def seconds(self) -> float:
        """How long it took, breaks left out."""
        return length(self.stretches)

    @cached_property
    def bars(self) -> list[Bar]:
        """The shards of all devices."""
        return [bar for device in self.devices for bar in device.bars]

    @cached_property
    def typical(self) -> float | None:
        """The median duration of a shard that is done."""
        done = [bar.seconds for bar in self.bars if bar.seen.state == DONE]
        return median(done) if done else None

    @property
    def idle_name(self) -> str:
        """What the time is called in which nothing tells of a shard."""
        return "idle or not known" if self.untimed else "idle"

    def idle(self, device: DeviceWork) -> float:
        """Seconds in which nothing tells of a shard of a device, while the run went on."""
        return max(0.0, self.seconds - length(device.busy))


def of(seen: Observation) -> Run:
    """The work that an observation tells of; shards without times are left out."""
    found: dict[str, list[Sighting]] = defaultdict(list)
    devices: dict[str, Device | None] = {}
    for sighting in seen.shards.values():
        if _interval(sighting, seen.at) is None:
            continue
        key = sighting.device.key if sighting.device else ""
        devices.setdefault(key, sighting.device)
        found[key].append(sighting)
    rows = [DeviceWork(devices[key], _bars(own, seen.at)) for key, own in found.items()]
    rows.sort(key=lambda row: (row.device is None, row.device and row.device.node, row.name))
    times = union(interval for row in rows for interval in row.busy)
    timed = {id(bar.seen) for row in rows for bar in row.bars}
    untimed = any(own.attempts > (id(own) in timed) for own in seen.shards.values())
    return Run(tuple(rows), tuple(_stretches(times)), untimed)


def held_by(bars: Iterable[Bar]) -> dict[str, float]:
    """Seconds by phase of some shards; empty where no receipt says any."""
    total = dict.fromkeys(PHASES, 0.0)
    known = False
    for bar in bars:
        for phase, spent in (bar.held or {}).items():
            total[phase] += spent
            known = True
    return total if known else {}


def _interval(seen: Sighting, at: float) -> Span | None:
    """When a shard was at work, where that is known."""
    begin = number(seen.started)
    end = number(seen.finished) if seen.state == DONE else at
    if seen.state not in (DONE, RUNNING) or begin is None or end is None:
        return None
    return begin, max(begin, end)


def _bars(seen: Iterable[Sighting], at: float) -> tuple[Bar, ...]:
    """The shards of one device, each in the first lane that is free."""
    timed = sorted(
        ((_interval(sighting, at), sighting) for sighting in seen),
        key=lambda pair: (pair[0], pair[1].shard),
    )
    free: list[float] = []
    made = []
    for interval, sighting in timed:
        begin, end = interval or (0.0, 0.0)
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[lane:lane + 1] = [end]  # fmt: skip
        made.append(Bar(sighting, begin, end, lane, _held(sighting)))
    return tuple(made)


def _held(seen: Sighting) -> dict[str, float] | None:
    """The seconds by phase of a receipt, if each is a number."""
    if seen.timeline is None:
        return None
    found = {phase: number(seen.timeline.held.get(phase)) for phase in PHASES}
    held = {phase: spent for phase, spent in found.items() if spent is not None and spent >= 0}
    return held if len(held) == len(PHASES) else None


def _stretches(times: list[Span]) -> list[Span]:
    """The times of work without the breaks between runs; shorter pauses stay inside."""
    least = max(_BREAK_SECONDS, _BREAK_SHARE * length(times))
    made: list[Span] = []
    for begin, end in times:
        if made and begin - made[-1][1] <= least:
            made[-1] = made[-1][0], end
        else:
            made.append((begin, end))
    return made
