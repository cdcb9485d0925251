"""What is seen of a run, in figures for people: counts, rates, time left, what each device does.

Pure: an observation in, figures out. Standard library only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.observe.observation import (
    DONE,
    RUNNING,
    STATES,
    WAITING,
    Device,
    Observation,
    Sighting,
    Verdict,
)
from shardwise.observe.verdict import verdict
from shardwise.records.timeline import length, union

SCHEMA = 2
"""Of what :meth:`Look.json` gives."""

_LATELY = 60.0, 600.0
"""Seconds that "now" goes back: twice the last shards' duration, within these."""
_IDLE_SECONDS = 900.0
"""How long after its last shard a device is shown as idle; later, it is not this run's."""
_ENDED = "proven", "unproven"


@dataclass(frozen=True)
class Rates:
    """Bytes of input a second.

    Attributes
    ----------
    now
        Over the last minutes; None where nothing was done in them.
    overall
        Over all the time in which at least one shard was at work.
    """

    now: float | None
    overall: float | None


@dataclass(frozen=True)
class Row:
    """A device at work on a shard, or one that had some lately and has none now.

    Attributes
    ----------
    shard
        Id of the shard; None where it is idle.
    progress
        Share of it that is done, None where unknown.
    since
        Seconds that it has worked on the shard, or been idle.
    gauge
        What the device does, as `Sighting.gauge`; empty where unknown.
    """

    device: Device | None
    shard: str | None
    progress: float | None
    since: float | None
    gauge: Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """A run at one moment.

    Attributes
    ----------
    counts
        Shards by state; all of :data:`observe.STATES`.
    done_bytes, all_bytes
        Of input; what tasks at work have done counts as done.
    left
        Seconds until no shard is running or waiting; None where unknown, and ``why`` says why.
    """

    seen: Observation
    verdict: Verdict
    counts: Mapping[str, int]
    done_bytes: float
    all_bytes: int
    rates: Rates
    left: float | None
    why: str | None
    devices: tuple[Row, ...]

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.verdict.kind in _ENDED

    @property
    def code(self) -> int:
        """As the exit code of ``--once``: 0 all done, 75 unfinished, 3 somebody has to act."""
        if self.ended:
            return 0
        return 75 if self.verdict.kind in ("unfinished", "empty") else 3

    def json(self) -> dict[str, Any]:
        """All of it, for programs."""
        seen = self.seen
        return {
            "schema": SCHEMA, "results": str(seen.results.root), "at": seen.at,
            "verdict": self.verdict.kind, "words": self.verdict.words, "code": self.code,
            "shards": {"all": len(seen.shards), **self.counts},
            "bytes": {"done": round(self.done_bytes), "all": self.all_bytes},
            "bytes_per_second": {"now": self.rates.now, "overall": self.rates.overall},
            "seconds_left": self.left,
            "unknown_because": self.why,
            "devices": [_device_json(row) for row in self.devices],
            "quarantined": [
                {"uuid": e.uuid, "node": e.host, "why": e.why, "shard": e.shard,
                 "until": e.expires} for e in seen.quarantined
            ],
            "failures": [
                {"of": name, "reason": why.reason, "log": why.log, "at": why.at}
                for name, why in failures(seen)
            ],
            "problems": list(seen.problems),
        }  # fmt: skip


def look(seen: Observation) -> Look:
    """What an observation shows."""
    shards = list(seen.shards.values())
    found = Counter(shard.state for shard in shards)
    rates = _rates(seen.at, shards)
    left, why = _time_left(shards, rates.now)
    return Look(
        seen=seen,
        verdict=verdict(seen),
        counts={state: found[state] for state in STATES},
        done_bytes=sum(shard.bytes * _share(shard) for shard in shards),
        all_bytes=sum(shard.bytes for shard in shards),
        rates=rates,
        left=left,
        why=why,
        devices=tuple(_devices(seen.at, shards)),
    )


def failures(seen: Observation) -> list[tuple[str, Any]]:
    """What failed and stands: shards by id, stages by rule; the newest first."""
    found = [(name, why) for name, why in seen.failures.items()]
    found += [(s.shard, s.failure) for s in seen.shards.values() if s.failure is not None]
    return sorted(found, key=lambda pair: -(pair[1].at or 0.0))


def _share(shard: Sighting) -> float:
    """How much of a shard is done, as far as anybody says."""
    if shard.state == DONE:
        return 1.0
    return shard.progress or 0.0 if shard.state == RUNNING else 0.0


def _spans(at: float, shards: Iterable[Sighting]) -> list[tuple[float, float, float]]:
    """When work was done: begin, end, bytes."""
    found = []
    for shard in shards:
        if shard.started is None:
            continue
        if shard.seconds is not None:
            found.append((shard.started, shard.started + shard.seconds, float(shard.bytes)))
        elif shard.state == RUNNING and shard.started < at:
            found.append((shard.started, at, shard.bytes * _share(shard)))
    return sorted(found)


def _rates(at: float, shards: Iterable[Sighting]) -> Rates:
    spans = _spans(at, shards)
    if not spans:
        return Rates(None, None)
    last = sorted(spans, key=lambda span: span[1])[-8:]
    window = 2 * sum(end - begin for begin, end, _ in last) / len(last)
    since = at - min(max(window, _LATELY[0]), _LATELY[1])
    since = max(since, spans[0][0])
    lately = sum(
        amount * (min(end, at) - max(begin, since)) / max(end - begin, 1e-9)
        for begin, end, amount in spans
        if end > since and begin < at
    )
    busy = length(union((begin, end) for begin, end, _ in spans))
    whole = sum(amount for _, _, amount in spans)
    return Rates(
        lately / (at - since) if lately > 0 and at > since else None,
        whole / busy if whole > 0 and busy > 0 else None,
    )


def _time_left(shards: list[Sighting], rate: float | None) -> tuple[float | None, str | None]:
    """Seconds that the bytes left take at the rate of the last minutes, or why nobody knows."""
    if not shards:
        return None, "nothing is planned yet"
    found = {shard.state for shard in shards}
    left = sum(s.bytes * (1 - _share(s)) for s in shards if s.state in (RUNNING, WAITING))
    if not found & {RUNNING, WAITING}:
        return 0.0, None
    if rate is not None:
        return left / rate, None
    if RUNNING in found:
        return None, "no shard has finished yet"
    return None, "no task is at work" if DONE in found else "no shard has been begun"


def _devices(at: float, shards: Sequence[Sighting]) -> list[Row]:
    """Devices at work, by node; then those that are idle since a short time, while shards wait."""
    rows, busy, last = [], set(), {}
    waits = any(shard.state == WAITING for shard in shards)
    for shard in shards:
        if shard.state == RUNNING:
            since = None if shard.started is None else max(0.0, at - shard.started)
            rows.append(Row(shard.device, shard.shard, shard.progress, since, shard.gauge or {}))
            busy.add(shard.device)
        elif shard.device is not None and shard.finished is not None:
            last[shard.device] = max(last.get(shard.device, 0.0), shard.finished)
    rows.sort(key=lambda row: (row.device is None, _order(row.device), row.shard))
    idle = [
        Row(device, None, None, max(0.0, at - ended), {})
        for device, ended in sorted(last.items(), key=lambda pair: _order(pair[0]))
        if waits and device not in busy and at - ended < _IDLE_SECONDS
    ]
    return rows + idle


def _order(device: Device | None) -> tuple[str, str]:
    return (device.node, device.key) if device else ("", "")


def _device_json(row: Row) -> dict[str, Any]:
    device = row.device
    return {
        "name": device.name if device else None, "uuid": device.uuid if device else None,
        "node": device.node if device else None, "shard": row.shard, "progress": row.progress,
        "seconds": row.since, "gauge": dict(row.gauge) or None,
    }  # fmt: skip
