"""A run as tables: a row per shard and a row per device, with the seconds that each phase took.

The page and the advice read these tables. Receipts may be damaged or made up: a shard without
usable times is left out, a number that cannot be is missing, and nothing is divided by zero.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from shardwise.observe.observation import DONE, RUNNING, Observation, Sighting
from shardwise.records.timeline import PHASES, STAGES, Span, length, union
from shardwise.units import number, plain

FEWEST_SHARDS, FEWEST_SECONDS = 3, 30.0
"""Of a shorter run nothing is called slow or late, and there is no advice: it would be chance."""

STRAGGLER = 1.5
"""Times the median duration, from which a shard is a straggler."""

SLOWER = 1.3
"""Times as long as the others of its kind, from which a device is slow; equal ones differ by 10 %
for the room they stand in."""

_BREAK_SHARE, _BREAK_SECONDS = 0.25, 120.0
"""A pause of all devices longer than both (a share of all work) is a break between two runs."""

_LATEST = 1e11  # seconds of Unix time: what is later was made up
_HELD = [f"held_{phase}" for phase in PHASES]
_COLUMNS = ["shard", "state", "key", "kind", "node", "uuid", "label", "begin", "end", "matrices",
            "bytes", "attempts", "process", *_HELD, *(f"busy_{stage}" for stage in STAGES),
            *(f"work_{stage}" for stage in STAGES)]  # fmt: skip


@dataclass(frozen=True)
class RunTable:
    """What a run's receipts say of its time."""

    seen: Observation
    # A row per shard that is done or at work, ordered by device and begin. ``held_PHASE``,
    # ``busy_STAGE`` and ``work_STAGE`` are NaN where the receipt does not say. Shards that
    # overlap on a device have different lanes.
    shards: pd.DataFrame
    # The spans in which any shard was at work, without the breaks between runs.
    stretches: Sequence[Span]
    # Whether there was work of unknown time: failed attempts, and receipts that cannot be used.
    untimed: bool

    @property
    def begin(self) -> float:
        """When the first shard began; 0 where none is known to have."""
        return self.stretches[0][0] if self.stretches else 0.0

    @property
    def seconds(self) -> float:
        """How long the shards took, without breaks."""
        return length(self.stretches)

    @cached_property
    def done(self) -> pd.DataFrame:
        """The shards that are done."""
        return self.shards[self.shards.state == DONE]

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The shards that are done and say where their time went."""
        return self.done.dropna(subset=_HELD)

    @property
    def enough(self) -> bool:
        """Whether enough was measured to call anything slow."""
        return len(self.timed) >= FEWEST_SHARDS and self.seconds >= FEWEST_SECONDS

    @cached_property
    def typical(self) -> float:
        """The median duration of a shard that is done; 0 where there is none."""
        return float(self.done.seconds.median()) if len(self.done) else 0.0

    @cached_property
    def late(self) -> pd.DataFrame:
        """The stragglers, the worst first."""
        late = self.shards[self.shards.seconds > STRAGGLER * self.typical]
        found = late.sort_values(["seconds", "shard"], ascending=[False, True])
        return found if self.enough and self.typical > 0 else found[:0]

    @cached_property
    def devices(self) -> pd.DataFrame:
        """A row per device: what it is, its shards, and how it compares with its kind.

        ``busy`` are the seconds in which it had a shard, ``pace`` the seconds per matrix in its
        typical shard, ``slower`` this pace over that of the others of its kind.
        """
        grouped = self.shards.groupby("key", sort=False)
        rows = grouped[["label", "kind", "node", "uuid"]].first()
        rows["shards"] = grouped.size()
        rows["lanes"] = grouped.lane.max() + 1
        rows["busy"] = [length(joined(own)) for _, own in grouped]
        for column in _HELD:
            rows[column] = grouped[column].sum()
        paces = {key: _pace(own) for key, own in self.done.groupby("key", sort=False)}
        rows["pace"] = pd.Series(paces, dtype=float)
        rows["slower"] = rows.groupby("kind", sort=False).pace.transform(_against_the_others)
        return rows

    @property
    def slow(self) -> pd.DataFrame:
        """The devices that are slower than the others of their kind, the worst first."""
        rows = self.devices[self.devices.slower >= SLOWER] if self.enough else self.devices[:0]
        return rows.sort_values("slower", ascending=False)

    @cached_property
    def held(self) -> dict[str, float]:
        """Seconds by phase, of all shards, without the waiting of those that are read ahead."""
        held = {phase: float(self.timed[f"held_{phase}"].sum()) for phase in PHASES}
        spans = (length(joined(own)) for _, own in self.timed.groupby("key", sort=False))
        ahead = float(self.timed.seconds.sum()) - sum(spans)
        held["waiting"] -= min(held["waiting"], max(0.0, ahead))
        return held

    def rate(self, stage: str, node: str) -> float | None:
        """Work per second of a stage on a node, while it was at work.

        Nobody knows whether shards at work at once were in the same stage at once. So their busy
        seconds are added up, but to no more than the time in which the node (its disk), or each of
        its devices, had a shard: the true rate may be higher, never lower.
        """
        own = self.timed[self.timed.node == node]
        groups = [own] if stage in ("read", "write") else [rows for _, rows in own.groupby("key")]
        spent = min(float(own[f"busy_{stage}"].sum()), sum(length(joined(g)) for g in groups))
        work = float(own[f"work_{stage}"].sum())
        return work / spent if spent > 0 and work > 0 else None


def of(seen: Observation) -> RunTable:
    """The tables of what was observed."""
    rows = [row for own in seen.shards.values() if (row := _row(own, seen.at))]
    shards = pd.DataFrame(rows, columns=_COLUMNS)
    numbers = _COLUMNS[_COLUMNS.index("begin") :]
    shards[numbers] = shards[numbers].astype(float)
    shards["seconds"] = shards.end - shards.begin
    shards = shards.sort_values(["node", "label", "key", "begin", "shard"], ignore_index=True)
    shards["lane"] = [lane for _, own in shards.groupby("key", sort=False) for lane in _lanes(own)]
    rowed = set(shards.shard)
    untimed = any(own.attempts > (own.shard in rowed) for own in seen.shards.values())
    return RunTable(seen, shards, _stretches(joined(shards)), untimed)


def _row(own: Sighting, at: float) -> tuple[Any, ...] | None:
    """A shard as a row; None where nobody knows when it was at work."""
    begin = number(own.started, _LATEST)
    end = number(own.finished, _LATEST) if own.state == DONE else at
    if own.state not in (DONE, RUNNING) or begin is None or end is None:
        return None
    device, timing = own.device, own.timeline
    amounts: list[float | None] = [None] * (len(PHASES) + 2 * len(STAGES))
    if timing:
        amounts = [*(timing.held[phase] for phase in PHASES),
                   *(timing.busy[stage] for stage in STAGES),
                   *(timing.work[stage] for stage in STAGES)]  # type: ignore[literal-required] # fmt: skip
    who = (device.key, device.name, device.node, device.uuid) if device else ("", "", "", None)
    label = plain(device.label if device else "unknown device")
    return (own.shard, own.state, *who, label, begin, max(begin, end), own.matrices, own.bytes,
            own.attempts, own.process, *amounts)  # fmt: skip


def joined(shards: pd.DataFrame) -> list[Span]:
    """The times of some shards, joined where they overlap."""
    return union(zip(shards.begin.tolist(), shards.end.tolist(), strict=True))


def _lanes(shards: pd.DataFrame) -> list[int]:
    """For each shard of a device, in order of begin, the first lane that is free."""
    free, lanes = [], []
    for begin, end in zip(shards.begin, shards.end, strict=True):
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def _stretches(times: Sequence[Span]) -> list[Span]:
    """The times of work without the breaks between runs; shorter pauses stay inside."""
    least = max(_BREAK_SECONDS, _BREAK_SHARE * length(times))
    stretches: list[Span] = []
    for begin, end in times:
        if stretches and begin - stretches[-1][1] <= least:
            stretches[-1] = stretches[-1][0], end
        else:
            stretches.append((begin, end))
    return stretches


def _pace(done: pd.DataFrame) -> float | None:
    """Seconds per matrix in a typical shard of a device; None for fewer than two shards.

    The median, so that one straggler makes no device slow, over the shards at work at once.
    """
    spent = length(joined(done))
    if len(done) < 2 or spent <= 0:  # the first shard may have waited for the start
        return None
    return float((done.seconds / done.matrices).median()) * spent / float(done.seconds.sum())


def _against_the_others(paces: pd.Series) -> pd.Series:
    """Each pace over the median of the others of its kind; there may be 10,000 of them."""
    ordered = sorted(pace for pace in paces if pace > 0)

    def over(pace: float) -> float | None:
        if not pace > 0 or len(ordered) < 2:
            return None
        own = bisect_left(ordered, pace)
        low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
        return pace / (sum(ordered[i + (i >= own)] for i in (low, high)) / 2)

    return paces.map(over).astype(float)


def throttled(shards: Sequence[Sighting]) -> dict[str, float]:
    """Seconds in which devices ran slower than they can, by reason."""
    total: Counter[str] = Counter()
    for own in shards:
        seconds = own.telemetry and own.telemetry["throttled_seconds"]
        for name, spent in (seconds or {}).items():
            total[name.replace("_", " ")[:40]] += spent  # type: ignore[assignment]
    return {name: spent for name, spent in total.items() if spent}
