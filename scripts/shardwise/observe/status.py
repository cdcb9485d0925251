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

from shardwise.errors import one_line, some
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import ledger
from shardwise.records.failures import Failure
from shardwise.records.receipts import SumReceipt
from shardwise.units import clock, count, decimal, seconds

DONE, RUNNING, FAILED, WAITING, DAMAGED = "done", "running", "failed", "waiting", "damaged"
"""States of a shard, in this order: product and receipt exist; a task has begun it and not failed
since; its last task has left a failure; none of the others; a receipt or product is unusable."""

STATES = DONE, RUNNING, FAILED, WAITING, DAMAGED

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")

SCHEMA = 7
"""The version of the JSON that :meth:`Status.json` gives."""

_LATELY = 600.0  # seconds that the rate looks back

_MOST_NAMED = 5
_VERIFY = "shardwise verify"


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
    finished: float = 0.0  # this and the next two are from the receipt
    proven: bool = False
    held: Mapping[str, float] = field(default_factory=dict)
    failure: Failure | None = None  # of a failed shard
    flaw: str = ""  # of a damaged shard: what was found

    @property
    def seconds(self) -> float:
        """How long it took, if it is done."""
        return max(0.0, self.finished - self.started)


class Verdict(NamedTuple):
    """Whether the sum is right, in a word and in a sentence for a tired person.

    ``kind`` is one of :data:`VERDICTS`; ``unproven``: all is there, but nothing has proven it.
    """

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
    problems: tuple[str, ...] = ()  # one line each: what cannot be used, and what to do
    flaw: str = ""  # why the sum of this plan cannot be used
    living: bool | None = None  # whether a run or a task is at work; None if that is unknown

    @cached_property
    def counts(self) -> dict[str, int]:
        """Shards by state: all of :data:`STATES`."""
        states = Counter(shard.state for shard in self.shards.values())
        return {state: states[state] for state in STATES}

    @cached_property
    def done(self) -> list[ShardStatus]:
        """The shards that are done."""
        return [shard for shard in self.shards.values() if shard.state == DONE]

    @cached_property
    def running(self) -> list[ShardStatus]:
        """The shards at work, by node and device."""
        busy = [shard for shard in self.shards.values() if shard.state == RUNNING]
        return sorted(busy, key=lambda shard: (shard.device.node, shard.device.key))

    @cached_property
    def failed(self) -> list[tuple[str, Failure]]:
        """What failed and was not mended: shards by id, stages by name; the newest first."""
        found = [(s.shard, s.failure) for s in self.shards.values() if s.failure]
        return sorted([*self.failures.items(), *found], key=lambda pair: -pair[1].at)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the sum is right, as far as tasks and reduce proved it when they wrote."""
        plan, whole = self.plan, len(self.done) == len(self.shards)
        bad = [name for name, shard in self.shards.items() if shard.state == DAMAGED]
        if plan is None and self.problems:
            kind, words = "damaged", f"Damaged: {self.problems[0]}."
        elif plan is None:
            kind = "empty"
            words = f"Nothing is here yet: {self.results.root} holds no plan of a run."
        elif bad:
            cure = ledger.build_repair(plan, bad[:_MOST_NAMED])
            cure += ", and so on" * (len(bad) > _MOST_NAMED)
            what = f"the files of {len(bad)} of {len(self.shards)} shards"
            what += f" ({some(bad, _MOST_NAMED)}) cannot be used. To compute them again: {cure}"
            kind, words = "damaged", f"Damaged: {what}; then start the run again."
        elif whole and self.flaw:
            kind, words = "damaged", f"Damaged: all shards are done, but {self.flaw}."
        elif whole and self.summary:
            kind, words = self._proof(plan, self.summary)
            words += f" The files were not read again for this: `{_VERIFY}` does that."
        else:
            kind = "failed" if self.failed else "unfinished"
            words = f"Not finished: {self.tally}" + ", but not summed yet" * whole
            words += "".join(f"; {stage}: {why.reason}" for stage, why in self.failures.items())
            words += "."
        return Verdict(kind, one_line(words))

    def _proof(self, plan: Plan, summary: SumReceipt) -> tuple[str, str]:
        """The verdict on a run that is done and summed."""
        unproven = [name for name, shard in self.shards.items() if not shard.proven]
        if unproven or not summary.proven:
            if not plan.settings.verify:
                why = "verify is false in the config"
            elif plan.function:
                why = "a function of your own makes the products"
            else:
                why = f"some shards have no proof ({some(unproven, _MOST_NAMED)})"
            return "unproven", f"The sum is whole, but nothing has proven it: {why}."
        begin = f"all products of {count(len(self.shards), 'shard')} are proven"
        if summary.end_to_end:
            return "proven", f"The sum is right: {begin}, and it agrees with them end to end."
        why = f" ({summary.no_end_to_end})" if summary.no_end_to_end else ""
        return "proven", f"Proven: {begin}; the sum was not compared with them end to end{why}."

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.verdict.kind in ("proven", "unproven")

    @property
    def stopped(self) -> bool:
        """Whether no run lives, and something is left to do."""
        return self.living is False and not self.ended

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for; a run that lives may yet replace an earlier sum."""
        return not self.living if self.ended else self.stopped

    @property
    def code(self) -> int:
        """The exit code of ``--once``: 0 all done, 75 unfinished, 3 the user has to act."""
        return 0 if self.ended else 75 if self.verdict.kind in ("unfinished", "empty") else 3

    @property
    def headline(self) -> str:
        """How the run is doing, in a sentence."""
        words = self.verdict.words
        if self.living and self.verdict.kind in ("unfinished", "failed"):
            failed = f", {self.counts[FAILED]} failed so far" if self.counts[FAILED] else ""
            return f"Running: {self.counts[DONE]} of {len(self.shards)} shards are done{failed}."
        return f"A run is at work here. So far: {words}" if self.living and self.ended else words

    @property
    def tally(self) -> str:
        """The shards by state, in words."""
        words = [f"{self.counts[DONE]} of {len(self.shards)} shards done"]
        words += [f"{n} {state}" for state, n in self.counts.items() if n and state != DONE]
        return ", ".join(words)

    @property
    def counts_line(self) -> str:
        """The shards, the rate and the time left; empty without a plan."""
        rate = "" if self.rate is None else f"{decimal(self.rate, 'B/s')}; "
        return f"{self.tally}; {rate}{self.when_done}" if self.shards else ""

    @property
    def when_done(self) -> str:
        """When the run will be done, or why that is unknown."""
        if self.ended:
            return "all is done"
        if self.stopped:
            return "no run is at work"
        if self.shards and not self.counts[RUNNING] + self.counts[WAITING]:
            bad = len(self.done) < len(self.shards)
            return "what is left has to be run again" if bad else "the sum is next"
        if self.left is None:
            return "time left unknown"
        return f"about {seconds(self.left)} left, done about {clock(self.at + self.left)[:16]}"

    @cached_property
    def done_bytes(self) -> int:
        """Bytes of the input of shards that are done."""
        return sum(shard.bytes for shard in self.done)

    @cached_property
    def all_bytes(self) -> int:
        """Bytes of the whole input."""
        return sum(shard.bytes for shard in self.shards.values())

    @cached_property
    def took(self) -> float:
        """The seconds during which at least one of the done shards was at work."""
        return _busy((one.started, one.finished) for one in self.done)

    @cached_property
    def rate(self) -> float | None:
        """Input bytes per second in the minutes before the last shard was done; None if unknown.

        The bytes of a shard are spread over its duration. Pauses, as before a rerun, do not count.
        None if the last was long ago, or no run lives.
        """
        now = max((one.finished for one in self.done), default=0.0)  # shards at work are unknown
        last = [one for one in self.done if one.finished > now - _LATELY and one.seconds]
        parts = [(max(one.started, now - _LATELY), one) for one in last]
        busy = _busy((began, one.finished) for began, one in parts)
        usual = max([_LATELY, *(2 * one.seconds for one in last)])
        if self.stopped or not busy or self.at - now > usual:
            return None
        return sum(o.bytes * (o.finished - began) / o.seconds for began, o in parts) / busy

    @property
    def left(self) -> float | None:
        """Seconds until no shard is running or waiting; None if unknown."""
        rest = [one.bytes for one in self.shards.values() if one.state in (RUNNING, WAITING)]
        if rest:
            return sum(rest) / self.rate if self.rate else None
        return 0.0 if self.shards else None

    def json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "schema": SCHEMA, "results": str(self.results.root), "at": self.at,
            "verdict": self.verdict.kind, "words": self.verdict.words, "code": self.code,
            "shards": {"all": len(self.shards), **self.counts},
            "bytes": {"done": self.done_bytes, "all": self.all_bytes},
            "bytes_per_second": self.rate,
            "seconds_left": self.left,
            "devices": [
                {**vars(one.device), "shard": one.shard,
                 "seconds": max(0.0, self.at - one.started)}
                for one in self.running
            ],
            "failures": [{"of": name, **msgspec.to_builtins(why)} for name, why in self.failed],
            "suspects": {uuid: msgspec.to_builtins(why) for uuid, why in self.suspects.items()},
            "problems": list(self.problems),
        }  # fmt: skip


def _busy(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of some spans of time."""
    total, reached = 0.0, -math.inf
    for began, end in sorted(spans):
        total += max(0.0, end - max(began, reached))
        reached = max(reached, end)
    return total
