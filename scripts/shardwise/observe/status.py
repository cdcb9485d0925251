"""A run in figures for people: counts, rate, time left, what each device does.

Pure: an observation in, figures out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.observe.observation import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    FailureReason,
    Observation,
    Sighting,
    Verdict,
)
from shardwise.observe.verdict import verdict

SCHEMA = 5
"""Of what :meth:`Look.json` gives."""

_LATELY = 60.0, 600.0
"""The rate goes back twice the last shards' duration in seconds, within these."""


@dataclass(frozen=True)
class Look:
    """A run at one moment."""

    seen: Observation
    verdict: Verdict
    counts: Mapping[str, int]  # shards by state
    # Of input; what tasks at work have done counts as done.
    done_bytes: float
    all_bytes: int
    # Bytes of input per second over the last minutes; None if nothing was done in them.
    rate: float | None
    left: float | None  # seconds until no shard is running or waiting; None if unknown
    # Devices at work, each with its shard.
    devices: list[dict[str, Any]]

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.verdict.kind in ("proven", "unproven")

    @property
    def code(self) -> int:
        """As the exit code of ``--once``: 0 all done, 75 unfinished, 3 somebody has to act."""
        return 0 if self.ended else 75 if self.verdict.kind in ("unfinished", "empty") else 3

    @property
    def headline(self) -> str:
        """How the run is doing, in a sentence."""
        if self.verdict.kind == "empty":
            return f"Waiting: no run has begun in {self.seen.results.root} yet."
        if not self.counts[RUNNING] or self.verdict.kind not in ("unfinished", "failed"):
            return self.verdict.words
        failed = f", {self.counts[FAILED]} have failed so far" if self.counts[FAILED] else ""
        return f"Running: {self.counts[DONE]} of {len(self.seen.shards)} shards are done{failed}."

    def json(self) -> dict[str, Any]:
        """Everything, for programs."""
        seen = self.seen
        return {
            "schema": SCHEMA, "results": str(seen.results.root), "at": seen.at,
            "verdict": self.verdict.kind, "words": self.verdict.words, "code": self.code,
            "shards": {"all": len(seen.shards), **self.counts},
            "bytes": {"done": round(self.done_bytes), "all": self.all_bytes},
            "bytes_per_second": self.rate,
            "seconds_left": self.left,
            "devices": self.devices,
            "quarantined": [
                {"uuid": e.uuid, "node": e.host, "why": e.why, "shard": e.shard,
                 "until": e.expires} for e in seen.quarantined
            ],
            "failures": [{"of": name, **vars(why)} for name, why in failures(seen)],
            "problems": list(seen.problems),
        }  # fmt: skip


def look(seen: Observation) -> Look:
    """The figures of an observation."""
    shards = list(seen.shards.values())
    done, planned = sum(one.bytes * _share(one) for one in shards), sum(one.bytes for one in shards)
    rate = _rate(seen.at, shards)
    open_ = [one for one in shards if one.state in (RUNNING, WAITING)]
    rest = sum(one.bytes * (1 - _share(one)) for one in open_)
    left = rest / rate if rate and open_ else None if open_ or not shards else 0.0
    return Look(seen, verdict(seen), seen.counts, done, planned, rate, left, _devices(seen))


def failures(seen: Observation) -> list[tuple[str, FailureReason]]:
    """Failures that nothing has mended: shards by id, stages by rule; the newest first."""
    failed = [*seen.failures.items()]
    failed += [(s.shard, s.failure) for s in seen.shards.values() if s.failure is not None]
    return sorted(failed, key=lambda pair: -(pair[1].at or 0.0))


def _share(shard: Sighting) -> float:
    """How much of a shard is done, as far as that is known."""
    return {DONE: 1.0, RUNNING: shard.progress or 0.0}.get(shard.state, 0.0)


def _rate(at: float, shards: Sequence[Sighting]) -> float | None:
    """Bytes per second over the last minutes, each shard's spread evenly over its time."""
    rows = [
        (shard.finished if shard.state == DONE else at, shard.started, shard.bytes * _share(shard))
        for shard in shards
        if shard.state in (DONE, RUNNING) and shard.started is not None
    ]
    rows = [row for row in rows if row[0] is not None and row[1] < row[0]]
    if not rows:
        return None
    ends, begins, amounts = np.array(sorted(rows)).T
    window = np.clip(2 * (ends - begins)[-8:].mean(), *_LATELY)
    since = max(at - window, begins.min())
    inside = np.clip(np.minimum(ends, at) - np.maximum(begins, since), 0, None)
    lately = float((amounts * inside / (ends - begins)).sum())
    return lately / float(at - since) if lately > 0 and at > since else None


def _devices(seen: Observation) -> list[dict[str, Any]]:
    """The devices at work, by node, each with its shard."""
    busy = [shard for shard in seen.shards.values() if shard.state == RUNNING]
    busy.sort(key=lambda one: (one.device.node, one.device.key) if one.device else ("\uffff", ""))
    return [
        {"name": one.device and one.device.name, "uuid": one.device and one.device.uuid,
         "node": one.device and one.device.node, "shard": one.shard, "progress": one.progress,
         "seconds": None if one.started is None else max(0.0, seen.at - one.started)}
        for one in busy
    ]  # fmt: skip
