"""What a results folder shows at one moment: its shards, its sum, and what follows from them.

`shardwise.observe.folder` looks; whoever shows a run takes it from here, so that watch, page and
metrics never contradict each other.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from shardwise import host
from shardwise.errors import one_line, some
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import ledger
from shardwise.records.failures import Failure
from shardwise.records.receipts import Held, SumReceipt
from shardwise.units import any_clock, decimal, seconds

DONE, RUNNING, FAILED, WAITING, DAMAGED = "done", "running", "failed", "waiting", "damaged"
"""States of a shard: product and receipt are there; a task is at work on it; the last task has left
a failure; none of these; a receipt or product is there that cannot be used."""

STATES = DONE, RUNNING, FAILED, WAITING, DAMAGED

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")

FRESH_SECONDS = 30.0
"""A living task gives a sign of life within this time: it renews its live file every 2 s."""

SCHEMA = 6
"""Of what :meth:`Status.json` gives."""

_LATELY = 60.0, 600.0
"""The rate goes back twice the last shards' duration in seconds, within these."""

_MOST_NAMED = 5
_UNREAD = f"The files were not read again for this: `{host.command('verify')}` does that."


@dataclass(frozen=True)
class Device:
    """Who computes a shard: a GPU, or the CPU of a node, which has no UUID."""

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
        kind, _, rest = (self.uuid or "").partition("-")
        short = (f"{kind}-{rest[:8]}" if rest else kind[:12],) if kind else ()
        return " · ".join((self.name, self.node, *short))


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard of the plan, as it is now; None stands for anything unknown."""

    shard: str
    state: str
    matrices: int  # of its input, as bytes are
    bytes: int
    attempts: int = 0
    started: float | None = None  # seconds of Unix time, of the receipt or of the task at work
    finished: float | None = None
    device: Device | None = None
    proven: bool | None = None  # this and the next are from the receipt
    held: Held | None = None
    progress: float | None = None  # share of its matrices, 0 to 1, where a task at work says so
    failure: Failure | None = None  # of a failed shard
    flaw: str = ""  # of a damaged shard: what was found, and the command that repairs it

    @property
    def seconds(self) -> float | None:
        """How long it took; None if it is not done."""
        if self.state != DONE or self.started is None or self.finished is None:
            return None
        return max(0.0, self.finished - self.started)

    @property
    def done_bytes(self) -> float:
        """How much of its input is multiplied, as far as that is known."""
        return self.bytes * {DONE: 1.0, RUNNING: self.progress or 0.0}.get(self.state, 0.0)


@dataclass(frozen=True)
class Verdict:
    """Whether the number is right, in a word and in a sentence for a tired person.

    ``kind`` is one of :data:`VERDICTS`; ``unproven``: all is there, and nothing proved it.
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
        return sorted(busy, key=lambda s: (s.device.node, s.device.key) if s.device else ("~", ""))

    @cached_property
    def failed(self) -> list[tuple[str, Failure]]:
        """What failed and was not mended: shards by id, stages by name; the newest first."""
        found = [(s.shard, s.failure) for s in self.shards.values() if s.failure]
        return sorted([*self.failures.items(), *found], key=lambda pair: -pair[1].at)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the number is right, by what tasks and reduce have proven when they wrote."""
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
        return self.stopped or (self.ended and not self.living)

    @property
    def code(self) -> int:
        """As the exit code of ``--once``: 0 all done, 75 unfinished, 3 somebody has to act."""
        return 0 if self.ended else 75 if self.verdict.kind in ("unfinished", "empty") else 3

    @property
    def headline(self) -> str:
        """How the run is doing, in a sentence."""
        if self.verdict.kind == "empty" and not self.stopped:
            return f"Waiting: {self.results.root} holds no plan of a run yet."
        if self.living and self.ended:
            return f"A run is at work here. So far: {self.verdict.words}"
        if not self.living or self.verdict.kind not in ("unfinished", "failed"):
            return self.verdict.words
        failed = f", {self.counts[FAILED]} have failed so far" if self.counts[FAILED] else ""
        return f"Running: {self.counts[DONE]} of {len(self.shards)} shards are done{failed}."

    @property
    def counts_line(self) -> str:
        """The counts, the rate and the time left; empty without a plan."""
        words = [f"{self.counts[DONE]} of {len(self.shards)} shards done"]
        words += [f"{n} {state}" for state, n in self.counts.items() if n and state != DONE]
        rate = "" if self.rate is None else f"{decimal(self.rate, 'B/s')}; "
        return f"{', '.join(words)}; {rate}{self.when_done}" if self.shards else ""

    @property
    def when_done(self) -> str:
        """When the run will be done, or why nobody can say."""
        if self.ended:
            return "all is done"
        if self.stopped:
            return "no run is at work"
        if self.shards and not self.counts[RUNNING] + self.counts[WAITING]:
            bad = len(self.done) < len(self.shards)
            return "what is left has to be run again" if bad else "the sum is next"
        if self.left is None:
            return "time left unknown: nothing was done in the last minutes"
        end, far = any_clock(self.at + self.left), self.left > 20 * 3600
        return f"about {seconds(self.left)} left, done about {end[:16] if far else end[11:16]}"

    @cached_property
    def done_bytes(self) -> float:
        """Bytes of input that are multiplied, also of shards at work."""
        return sum(shard.done_bytes for shard in self.shards.values())

    @cached_property
    def all_bytes(self) -> int:
        """Bytes of the whole input."""
        return sum(shard.bytes for shard in self.shards.values())

    @cached_property
    def rate(self) -> float | None:
        """Bytes per second over the last minutes, each shard's spread evenly over its time.

        None if nothing was done in them, or no run lives. A pause before them, as before a rerun,
        does not count.
        """
        if self.stopped:
            return None
        rows = [
            (one.finished if one.state == DONE else self.at, one.started, one.done_bytes)
            for one in self.shards.values()
            if one.state in (DONE, RUNNING) and one.started is not None
        ]
        rows = sorted(row for row in rows if row[0] is not None and row[1] < row[0])
        if not rows:
            return None
        ends, begins, amounts = np.array(rows).T
        since = self.at - np.clip(2 * (ends - begins)[-8:].mean(), *_LATELY)
        lately = ends > since
        if not lately.any():
            return None
        since = max(since, begins[lately].min())
        inside = np.clip(np.minimum(ends, self.at) - np.maximum(begins, since), 0, None)
        amount = float((amounts * inside / (ends - begins)).sum())
        return amount / float(self.at - since) if amount > 0 and self.at > since else None

    @property
    def left(self) -> float | None:
        """Seconds until no shard is running or waiting; None if unknown."""
        rest = [
            s.bytes - s.done_bytes for s in self.shards.values() if s.state in (RUNNING, WAITING)
        ]
        if rest:
            return sum(rest) / self.rate if self.rate else None
        return 0.0 if self.shards else None

    def json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "schema": SCHEMA, "results": str(self.results.root), "at": self.at,
            "verdict": self.verdict.kind, "words": self.verdict.words, "code": self.code,
            "shards": {"all": len(self.shards), **self.counts},
            "bytes": {"done": round(self.done_bytes), "all": self.all_bytes},
            "bytes_per_second": self.rate,
            "seconds_left": self.left,
            "devices": [
                {**(vars(one.device) if one.device else {}), "shard": one.shard,
                 "progress": one.progress,
                 "seconds": None if one.started is None else max(0.0, self.at - one.started)}
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
        return Verdict("empty", f"Nothing is here yet: {where} holds no plan; run snakemake first.")
    if bad := [name for name, shard in seen.shards.items() if shard.state == DAMAGED]:
        cure = ledger.build_repair(plan, bad[:_MOST_NAMED])
        words = f"Damaged: the files of {len(bad)} of {shards} shards ({some(bad, _MOST_NAMED)}) "
        words += f"cannot be used. To compute them again: {cure}"
        words += ", and so on" if len(bad) > _MOST_NAMED else ""
        return Verdict("damaged", one_line(f"{words}; then snakemake as before."))
    told = f"all {shards} shards are done, but they are not summed yet"
    told = told if shards > 1 else "the shard is done, but not summed yet"
    if done < shards:
        named = (f"{seen.counts[word]} {word}" for word in (RUNNING, FAILED) if seen.counts[word])
        told = ", ".join([f"{done} of {shards} shards are done", *named])
    elif seen.flaw:
        return Verdict("damaged", one_line(f"Damaged: all shards are done, but {seen.flaw}."))
    elif seen.summary:
        return _of_sum(seen, plan, seen.summary)
    told += "".join(f"; {stage}: {why.reason}" for stage, why in seen.failures.items())
    return Verdict("failed" if seen.failed else "unfinished", f"Not finished: {told}.")


def _of_sum(seen: Status, plan: Plan, summary: SumReceipt) -> Verdict:
    unproven = [name for name, shard in seen.shards.items() if not shard.proven]
    if not summary.proven or unproven:
        if plan.settings.verify is False:
            why = "verify is false in the config; set it to true and run snakemake again"
        elif plan.problem.result is not None:
            why = "a function of your own makes the products, and only you know what is right"
        else:
            named = some(unproven, _MOST_NAMED)
            why = f"{len(unproven)} of {len(seen.shards)} shards ({named}) have no proof"
        words = f"The sum is whole, but nothing has proven it: {why}."
        return Verdict("unproven", f"{words} {_UNREAD}")
    shards = len(seen.shards)
    begin = f"all {shards} shards have proven their products"
    begin = begin if shards > 1 else "the shard has proven its products"
    words = f"The sum is right: {begin}, and it agrees with them end to end."
    if not summary.end_to_end:
        because = f" ({one_line(summary.no_end_to_end)})" if summary.no_end_to_end else ""
        words = f"Proven: {begin}; the sum was not compared with them end to end{because}."
    return Verdict("proven", f"{words} {_UNREAD}")
