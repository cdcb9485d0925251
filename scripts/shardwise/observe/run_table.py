"""A run as tables: a row per shard and a row per device, with the seconds that each phase took.

The page reads these tables. Receipts may be damaged or made up: a shard without
usable times is left out, a number that cannot be is missing, and nothing is divided by zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from shardwise.observe.observation import DONE, RUNNING, Observation, Sighting
from shardwise.records.timeline import PHASES, Span, length, union
from shardwise.units import number, plain

FEWEST_SHARDS, FEWEST_SECONDS = 3, 30.0
"""In a smaller or shorter run nothing is called slow: it would be chance."""

SLOWER = 1.3
"""How many times as long as others of its kind a slow device takes, at least; equal ones differ by
10 %, depending on where they stand."""

_BREAK_SHARE, _BREAK_SECONDS = 0.25, 120.0
"""A pause of all devices longer than both (a share of all work, seconds) separates two runs."""

_LATEST = 1e11  # seconds of Unix time; anything later was made up
_HELD = [f"held_{phase}" for phase in PHASES]
_COLUMNS = ["shard", "state", "key", "kind", "node", "uuid", "label", "begin", "end", "matrices",
            "attempts", *_HELD]  # fmt: skip


@dataclass(frozen=True)
class RunTable:
    """What a run's receipts say of its time."""

    seen: Observation
    # A row per shard that is done or at work, ordered by device and begin. ``held_PHASE`` is NaN
    # while it is at work. Shards that overlap on a device have different lanes.
    shards: pd.DataFrame
    # The spans in which any shard was at work, without the breaks between runs.
    stretches: Sequence[Span]

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
    def devices(self) -> pd.DataFrame:
        """A row per device: what it is, its shards, and how it compares with its kind.

        ``busy`` are the seconds in which it had a shard, ``pace`` the seconds per matrix in its
        typical shard, ``slower`` this pace divided by that of the others of its kind.
        """
        grouped = self.shards.groupby("key", sort=False)
        rows = grouped[["label", "kind", "node", "uuid"]].first()
        rows["shards"] = grouped.size()
        rows["lanes"] = grouped.lane.max() + 1
        rows["busy"] = [length(joined(own)) for _, own in grouped]
        paces = {key: _pace(own) for key, own in self.done.groupby("key", sort=False)}
        rows["pace"] = pd.Series(paces, dtype=float)
        rows["slower"] = rows.groupby("kind", sort=False).pace.transform(_against_the_others)
        return rows

    @property
    def slow(self) -> set[str]:
        """The devices, by their keys, that are slower than the others of their kind."""
        enough = len(self.done) >= FEWEST_SHARDS and self.seconds >= FEWEST_SECONDS
        return set(self.devices.index[self.devices.slower >= SLOWER]) if enough else set()


def of(seen: Observation) -> RunTable:
    """The tables of an observation."""
    rows = [row for own in seen.shards.values() if (row := _row(own, seen.at))]
    shards = pd.DataFrame(rows, columns=_COLUMNS)
    numbers = _COLUMNS[_COLUMNS.index("begin") :]
    shards[numbers] = shards[numbers].astype(float)
    shards["seconds"] = shards.end - shards.begin
    shards = shards.sort_values(["node", "label", "key", "begin", "shard"], ignore_index=True)
    shards["lane"] = [lane for _, own in shards.groupby("key", sort=False) for lane in _lanes(own)]
    return RunTable(seen, shards, _stretches(joined(shards)))


def _row(own: Sighting, at: float) -> tuple[Any, ...] | None:
    """A shard as a row; None if it is unknown when it was computed."""
    begin = number(own.started, _LATEST)
    end = number(own.finished, _LATEST) if own.state == DONE else at
    if own.state not in (DONE, RUNNING) or begin is None or end is None:
        return None
    device, held = own.device, dict[str, float](own.held or {})
    who = (device.key, device.name, device.node, device.uuid) if device else ("", "", "", None)
    label = plain(device.label if device else "unknown device")
    return (own.shard, own.state, *who, label, begin, max(begin, end), own.matrices, own.attempts,
            *map(held.get, PHASES))  # fmt: skip


def joined(shards: pd.DataFrame) -> list[Span]:
    """The times of some shards, joined where they overlap."""
    return union(zip(shards.begin.tolist(), shards.end.tolist(), strict=True))


def _lanes(shards: pd.DataFrame) -> list[int]:
    """For each shard of a device, ordered by begin, the first free lane."""
    free, lanes = [], []
    for begin, end in zip(shards.begin, shards.end, strict=True):
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def _stretches(times: Sequence[Span]) -> list[Span]:
    """The times of work without the breaks between runs; shorter pauses are kept."""
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

    The median, so that one straggler makes no device slow, over the number of shards at once.
    """
    spent = length(joined(done))
    if len(done) < 2 or spent <= 0:  # the first shard may have waited for the start
        return None
    return float((done.seconds / done.matrices).median()) * spent / float(done.seconds.sum())


def _against_the_others(paces: pd.Series) -> pd.Series:
    """Each pace divided by the median of the others of its kind."""
    known = paces[paces > 0]
    return paces / [known.drop(key, errors="ignore").median() for key in paces.index]
