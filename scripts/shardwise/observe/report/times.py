"""Where the time of a run went: of the whole, and of each device.

Receipts may be damaged or made up: a shard without usable times is left out.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from shardwise.errors import IntegrityError
from shardwise.observe.status import DONE, RUNNING, ShardStatus, Status
from shardwise.records import receipts
from shardwise.records.timeline import PHASES, Span, length, union
from shardwise.units import number, plain

PHASE_NAMES = ("waiting", "reading the input", "computing", "writing the result")
"""What the page calls the phases, in their order."""

_BREAK_SHARE, _BREAK_SECONDS = 0.25, 120.0
"""A pause of all devices longer than both (a share of all work, seconds) separates two runs."""

_LATEST = 1e11  # seconds of Unix time; anything later was made up
_MOST_COPIES = 1000
"""Receipts of copies that are read; of more, some at equal distances."""

Part = tuple[str, str, float]
"""The class of a colour, what it stands for, and seconds, or a share."""


@dataclass
class DeviceTime:
    """What a device did: its shards, the seconds in which it had any, and what held these up."""

    label: str
    shards: int = 0
    matrices: int = 0
    spans: list[Span] = field(default_factory=list)
    held: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))

    @property
    def busy(self) -> float:
        """Seconds in which it had a shard."""
        return length(union(self.spans))

    def parts(self, seconds: float) -> list[Part]:
        """The shares of a run of so many seconds: each phase, and the rest."""
        at_work = min(1.0, self.busy / max(seconds, 1e-9))
        whole = max(sum(self.held), 1e-9)
        shares = [held / whole * at_work for held in self.held]
        names = zip(PHASE_NAMES, shares, strict=True)
        found = [(f"p{i}", name, part) for i, (name, part) in enumerate(names)]
        rest = ("idle", "nothing, or an attempt that failed", 1.0 - sum(shares))
        return [part for part in (*found, rest) if part[2] > 0]


def span_of(own: ShardStatus, at: float) -> Span | None:
    """When a shard was at work; None if that is unknown."""
    begin = number(own.started, _LATEST)
    end = number(own.finished, _LATEST) if own.state == DONE else at
    if own.state not in (DONE, RUNNING) or begin is None or end is None:
        return None
    return begin, max(begin, end)


class RunTime:
    """The time of a run: ``devices`` by their labels, and ``stretches`` without long breaks."""

    def __init__(self, seen: Status) -> None:
        self._seen, found = seen, dict[str, DeviceTime]()
        for own in seen.shards.values():
            if span := span_of(own, seen.at):
                label = plain(own.device.label if own.device else "unknown device")
                device = found.setdefault(own.device.key if own.device else "", DeviceTime(label))
                device.spans.append(span)
                device.shards += own.state == DONE
                device.matrices += own.matrices if own.state == DONE else 0
                held = dict[str, float](own.held or {})
                pairs = zip(device.held, map(held.get, PHASES), strict=True)
                device.held = [before + (seconds or 0.0) for before, seconds in pairs]
        self.devices = sorted(found.values(), key=lambda device: device.label)
        self._work = union(span for device in self.devices for span in device.spans)
        gap = max(_BREAK_SECONDS, _BREAK_SHARE * length(self._work))
        self.stretches = union(self._work, gap)

    @property
    def seconds(self) -> float:
        """How long the shards took, without breaks between runs."""
        return length(self.stretches)

    def spent(self) -> list[Part]:
        """Where the total time of the run went.

        Each moment from the plan to the last result counts once, for the first of these that was at
        work then: shards, reduce, copies. The rest is waiting. Breaks do not count.
        """
        seen, spans = self._seen, self.stretches
        planned = seen.plan.facts.made if seen.plan else None
        if planned is None or not spans or planned.time > spans[0][0]:
            return []
        reduce = [(own.started, own.finished)] if (own := seen.summary) else []
        reduce = [span for span in reduce if spans[-1][0] < span[0] <= span[1]]
        last = max(end for _, end in [*spans, *reduce])
        breaks = sum(b - a for (_, a), (b, _) in pairwise(spans))
        known, before, rows = list[Span](), 0.0, []
        parts = (("p3", "computing shards", self._work), ("p1", "reduce", reduce),
                 ("p2", "copying shards", list(_copies(seen))))  # fmt: skip
        for kind, name, own in parts:
            known = union([*known, *((max(a, planned.time), min(b, last)) for a, b in own)])
            rows.append((kind, name, length(known) - before))
            before = length(known)
        rest = max(0.0, last - planned.time - breaks - before)
        rows.append(("p0", "queue and start", rest))
        return [row for row in (rows[3], rows[2], *rows[:2]) if row[2] > 0]


def _copies(seen: Status) -> Iterator[Span]:
    """When shards were copied, by the receipts of the copies."""
    if seen.plan is None or not seen.plan.settings.materialize:
        return
    rows = list(seen.plan.shards.values())
    for row in rows[:: 1 + len(rows) // _MOST_COPIES]:
        with suppress(IntegrityError):
            path = seen.results.shard_receipt(row.input_name)
            own = receipts.read(path, receipts.CopyReceipt)
            yield own.started, own.finished
