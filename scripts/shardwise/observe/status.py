"""What a results folder shows at one moment: its shards, its sum, and what follows from them.

`shardwise.observe.observer` fills it in. Watch, page and metrics show what is here, so that they
never contradict each other.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from shardwise.errors import one_line
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import ledger
from shardwise.records.failures import Failure
from shardwise.records.receipts import SumReceipt
from shardwise.units import count, decimal, seconds

STATES = DONE, RUNNING, FAILED, WAITING, DAMAGED = (
    "done", "running", "failed", "waiting", "damaged",
)  # fmt: skip
"""States of a shard, in this order: product and receipt exist; a task has begun it and not failed
since; its last task has left a failure; none of the others; a receipt or product is unusable."""

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")
"""``unproven``: all is there, but nothing has proven it."""

_LATELY = 600.0  # seconds that the rate looks back
_MOST_NAMED = 5


@dataclass(frozen=True)
class Device:
    """What computes a shard: a GPU, or the CPU of a node, which has no UUID."""

    name: str
    uuid: str | None
    node: str

    @property
    def key(self) -> str:
        """What tells devices apart: the UUID of a GPU, ``CPU of NODE`` otherwise."""
        return self.uuid or f"{self.name} of {self.node}"

    @property
    def label(self) -> str:
        """For people: a UUID is cut to its first digits, which tell the devices of a run apart."""
        return " · ".join(filter(None, (self.name, self.node, (self.uuid or "")[:12])))


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard of the plan, as it is now; times are seconds of Unix time."""

    shard: str
    state: str
    bytes: int  # of its input
    device: Device = Device("", None, "")  # this and the next are of shards done or running
    started: float = 0.0
    finished: float = 0.0  # this and the next are from the receipt
    held: Mapping[str, float] = field(default_factory=dict)
    failure: Failure | None = None  # of a failed shard
    flaw: str = ""  # of a damaged shard: what was found


class Verdict(NamedTuple):
    """Whether the sum is right: one of :data:`VERDICTS`, and a sentence for a tired person."""

    kind: str
    words: str


@dataclass(frozen=True)
class Status:
    """A results folder at one moment."""

    results: Results
    at: float  # seconds of Unix time
    plan: Plan | None = None  # None if there is none, or none that can be read
    shards: Mapping[str, ShardStatus] = field(default_factory=dict)  # in the plan's order
    summary: SumReceipt | None = None  # the receipt of the sum, if that is of this plan and whole
    failures: Mapping[str, Failure] = field(default_factory=dict)  # of stages, such as ``reduce``
    suspects: Mapping[str, Failure] = field(default_factory=dict)  # GPUs that failed, by UUID
    damage: tuple[str, ...] = ()  # one line for each file that cannot be used
    living: bool | None = None  # whether a run or a task is at work; None if that is unknown
    command: str = ""  # which continues the run; empty if no run has left it

    @cached_property
    def counts(self) -> dict[str, int]:
        """Shards by state: all of :data:`STATES`."""
        states = Counter(shard.state for shard in self.shards.values())
        return {state: states[state] for state in STATES}

    def of(self, state: str) -> list[ShardStatus]:
        """The shards in a state, by node and device."""
        found = [shard for shard in self.shards.values() if shard.state == state]
        return sorted(found, key=lambda shard: (shard.device.node, shard.device.key))

    @cached_property
    def done(self) -> list[ShardStatus]:
        """The shards that are done."""
        return self.of(DONE)

    @cached_property
    def failed(self) -> list[tuple[str, Failure]]:
        """What failed and was not mended: shards by id, stages by name; the newest first."""
        found = [(s.shard, s.failure) for s in self.shards.values() if s.failure]
        return sorted([*self.failures.items(), *found], key=lambda pair: -pair[1].at)

    @cached_property
    def remarks(self) -> list[str]:
        """What cannot be used, and the GPUs that were blamed for a failure; one line each."""
        blamed = (
            f"{uuid} of {why.host} failed: {why.reason}" for uuid, why in self.suspects.items()
        )
        return [*self.damage, *map(one_line, blamed)]

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the sum is right, as far as tasks and reduce proved it when they wrote."""
        if self.damage:
            kind, words = "damaged", f"Damaged: {self.damage[0]}"
            if self.plan:
                bad = [shard.shard for shard in self.of(DAMAGED)][:_MOST_NAMED]
                repair = ledger.build_repair(self.plan, bad, [] if bad else [self.results.summary])
                words += f"; to make it again: {repair}, then start the run again."
        elif self.plan is None:
            kind = "empty"
            words = f"Nothing is here yet: {self.results.root} holds no plan of a run."
        elif len(self.done) < len(self.shards) or self.summary is None:
            kind = "failed" if self.failed else "unfinished"
            stages = (f"; {stage}: {why.reason}" for stage, why in self.failures.items())
            words = f"Not finished: {self.tally}{''.join(stages)}."
        elif not self.summary.proven:
            kind = "unproven"
            words = "The sum is whole, but nothing has proven it (verify: false, or your function)."
        else:
            kind, begin, end = "proven", "Proven", "but the sum was not compared with them"
            if self.summary.end_to_end:
                begin, end = "The sum is right", "and it agrees with them end to end"
            words = (
                f"{begin}: all products of {count(len(self.shards), 'shard')} are proven, {end}."
            )
        return Verdict(kind, one_line(words))

    @property
    def ended(self) -> bool:
        """Whether all is done."""
        return self.verdict.kind in ("proven", "unproven")

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for; a run that lives may yet replace an earlier sum."""
        return self.living is False or (self.ended and not self.living)

    @property
    def code(self) -> int:
        """The exit code of ``--once``: 0 all done, 75 unfinished, 3 the user has to act."""
        return 0 if self.ended else 75 if self.verdict.kind in ("unfinished", "empty") else 3

    @property
    def headline(self) -> str:
        """How the run is doing, in a sentence."""
        return "A run is at work here. " * bool(self.living) + self.verdict.words

    @property
    def tally(self) -> str:
        """The shards by state, in words."""
        words = [f"{self.counts[DONE]} of {len(self.shards)} shards done"]
        words += [f"{n} {state}" for state, n in self.counts.items() if n and state != DONE]
        return ", ".join(words)

    @property
    def pace(self) -> str:
        """The rate and the time left, in words; empty if they are unknown."""
        if self.rate is None or not self.left:
            return ""
        return f"{decimal(self.rate, 'B/s')}, about {seconds(self.left)} left"

    def bytes(self, *states: str) -> int:
        """Bytes of the input of the shards in some states."""
        return sum(shard.bytes for shard in self.shards.values() if shard.state in states)

    @cached_property
    def rate(self) -> float | None:
        """Input bytes per second in the minutes before the last shard was done; None if unknown.

        Pauses, as before a rerun, do not count.
        """
        now = max((one.finished for one in self.done), default=0.0)  # shards at work are unknown
        lately = [one for one in self.done if one.finished > now - _LATELY]
        took = busy(lately)
        return (
            sum(one.bytes for one in lately) / took if took and self.living is not False else None
        )

    @property
    def left(self) -> float | None:
        """Seconds until no shard is running or waiting; None if unknown."""
        return self.bytes(RUNNING, WAITING) / self.rate if self.rate else None

    def json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "results": str(self.results.root), "at": self.at,
            "verdict": self.verdict.kind, "words": self.verdict.words, "code": self.code,
            "shards": {"all": len(self.shards), **self.counts},
            "bytes": {"done": self.bytes(DONE), "all": self.bytes(*STATES)},
            "bytes_per_second": self.rate, "seconds_left": self.left,
            "devices": [
                {**vars(one.device), "shard": one.shard, "seconds": self.at - one.started}
                for one in self.of(RUNNING)
            ],
            "failures": [{"of": name, **msgspec.to_builtins(why)} for name, why in self.failed],
            "remarks": self.remarks,
        }  # fmt: skip


def busy(shards: Iterable[ShardStatus]) -> float:
    """The seconds during which at least one of some shards was at work."""
    total, reached = 0.0, -math.inf
    for began, end in sorted((one.started, one.finished) for one in shards):
        total += max(0.0, end - max(began, reached))
        reached = max(reached, end)
    return total
