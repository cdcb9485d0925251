"""What a results folder shows at one moment: its shards, its sum, and what follows from them.

`shardwise.observe.observer` fills it in. Watch, page and metrics show what is here, so that they
never contradict each other.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import msgspec

from shardwise import host
from shardwise.errors import one_line, some
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import ledger
from shardwise.records.failures import Failure
from shardwise.records.receipts import SumReceipt
from shardwise.units import any_clock, count, decimal, seconds

DONE, RUNNING, FAILED, WAITING, DAMAGED = "done", "running", "failed", "waiting", "damaged"
"""States of a shard, in this order: product and receipt exist; a task has begun it and not failed
since; its last task has left a failure; none of the others; a receipt or product is unusable."""

STATES = DONE, RUNNING, FAILED, WAITING, DAMAGED

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")

SCHEMA = 7
"""The version of the JSON that :meth:`Status.json` gives."""

_LATELY = 60.0, 600.0
"""The rate looks back twice the mean duration of the last shards, within these, in seconds."""

_MOST_NAMED = 5
_UNREAD = f"The files were not read again for this: `{host.command('verify')}` does that."


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


@dataclass(frozen=True)
class Verdict:
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
        return _verdict(self)

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
        return f"about {seconds(self.left)} left, done about {any_clock(self.at + self.left)[:16]}"

    @cached_property
    def done_bytes(self) -> int:
        """Bytes of the input of shards that are done."""
        return sum(shard.bytes for shard in self.done)

    @cached_property
    def all_bytes(self) -> int:
        """Bytes of the whole input."""
        return sum(shard.bytes for shard in self.shards.values())

    @cached_property
    def rate(self) -> float | None:
        """Input bytes per second in the minutes before the last shard was done; None if unknown.

        The bytes of a shard are spread over its duration. A pause before all of these shards, as
        before a rerun, does not count. None if the last was long ago, or no run lives.
        """
        spans = [(one.started, one.finished, one.bytes) for one in self.done]
        spans = sorted((span for span in spans if span[0] < span[1]), key=itemgetter(1))
        last = [end - began for began, end, _ in spans[-8:]]
        usual = 2 * sum(last) / max(1, len(last))
        if self.stopped or not spans or self.at - spans[-1][1] > max(usual, _LATELY[1]):
            return None
        now = spans[-1][1]  # the progress of shards at work is unknown
        since = now - min(max(usual, _LATELY[0]), _LATELY[1])
        spans = [span for span in spans if span[1] > since]
        since = max(since, min(began for began, _, _ in spans))
        amount = sum(n * (end - max(began, since)) / (end - began) for began, end, n in spans)
        return amount / (now - since)

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


def _verdict(seen: Status) -> Verdict:
    plan, done, shards = seen.plan, len(seen.done), len(seen.shards)
    if plan is None and seen.problems:
        return Verdict("damaged", f"Damaged: {seen.problems[0]}.")
    if plan is None:
        where = one_line(str(seen.results.root))
        return Verdict("empty", f"Nothing is here yet: {where} holds no plan of a run.")
    if bad := [name for name, shard in seen.shards.items() if shard.state == DAMAGED]:
        words = f"Damaged: the files of {len(bad)} of {shards} shards ({some(bad, _MOST_NAMED)}) "
        words += (
            f"cannot be used. To compute them again: {ledger.build_repair(plan, bad[:_MOST_NAMED])}"
        )
        words += ", and so on" * (len(bad) > _MOST_NAMED)
        return Verdict("damaged", one_line(f"{words}; then start the run again."))
    told = seen.tally
    if done == shards and seen.flaw:
        return Verdict("damaged", one_line(f"Damaged: all shards are done, but {seen.flaw}."))
    if done == shards and seen.summary:
        return _of_sum(seen, plan, seen.summary)
    told += ", but not summed yet" * (done == shards)
    told += "".join(f"; {stage}: {why.reason}" for stage, why in seen.failures.items())
    return Verdict("failed" if seen.failed else "unfinished", f"Not finished: {told}.")


def _of_sum(seen: Status, plan: Plan, summary: SumReceipt) -> Verdict:
    unproven = [name for name, shard in seen.shards.items() if not shard.proven]
    if not summary.proven or unproven:
        if not plan.settings.verify:
            why = "verify is false in the config"
        elif plan.problem.result is not None:
            why = "a function of your own makes the products"
        else:
            why = f"some shards have no proof ({some(unproven, _MOST_NAMED)})"
        words = f"The sum is whole, but nothing has proven it: {why}."
        return Verdict("unproven", f"{words} {_UNREAD}")
    begin = f"all products of {count(len(seen.shards), 'shard')} are proven"
    words = f"The sum is right: {begin}, and it agrees with them end to end."
    if not summary.end_to_end:
        because = f" ({one_line(summary.no_end_to_end)})" if summary.no_end_to_end else ""
        words = f"Proven: {begin}; the sum was not compared with them end to end{because}."
    return Verdict("proven", f"{words} {_UNREAD}")
