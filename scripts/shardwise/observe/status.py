"""What a results folder shows at one moment: its shards, its sum, and what follows from them.

A shard with product and receipt under its name is done, or damaged. It is running if it was begun
since the last run of Snakemake began, has not failed since, and any job is at work. With a failure
file it has failed; otherwise it waits. Nothing is written, and no scheduler is asked.

Watch, page, metrics and the last words of a run show what is here, so that they never contradict
each other.
"""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shardwise.errors import InputError, IntegrityError, ShardwiseError, one_line
from shardwise.files import small
from shardwise.files.paths import Results, list_names, place, stamp
from shardwise.plan import plan as plan_file
from shardwise.plan.plan import Plan
from shardwise.records import failures, ledger, locks, receipts
from shardwise.records.failures import Failure, last_start
from shardwise.records.receipts import SumReceipt
from shardwise.records.store import Store
from shardwise.units import count

STATES = DONE, RUNNING, FAILED, WAITING, DAMAGED = (
    "done", "running", "failed", "waiting", "damaged",
)  # fmt: skip
VERDICTS = {
    "proven": 0, "unproven": 0, "unfinished": 75, "empty": 75, "failed": 3, "damaged": 3,
}  # fmt: skip
"""Each with its exit code. ``unproven``: all is there, but nothing has proven it."""

_LATELY = 600.0  # seconds that the rate looks back
_MOST_CAUSES = _MOST_NAMED = 5
_OWN = re.compile(r"\S*[/.]\S+|[0-9a-f]{12}|\d+")
"""Names of files, keys and numbers in a reason, which differ between shards with the same cause."""


@dataclass(frozen=True)
class Device:
    """What computes a shard: a GPU, or the CPU of a node, which has no UUID."""

    name: str
    uuid: str | None
    node: str

    @property
    def label(self) -> str:
        """For people: a UUID is cut to its first digits, which tell the devices of a run apart."""
        return " · ".join(filter(None, (self.name, self.node, (self.uuid or "")[:12])))


@dataclass(slots=True)
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


class Verdict(NamedTuple):
    """Whether the sum is right: one of :data:`VERDICTS`, and a sentence for a tired person."""

    kind: str
    words: str


@dataclass
class Status:
    """A results folder at one moment, in seconds of Unix time."""

    results: Results
    at: float
    plan: Plan | None = None  # None if there is none, or none that can be read
    shards: dict[str, ShardStatus] = field(default_factory=dict)  # in the plan's order
    summary: SumReceipt | None = None  # the receipt of the sum, if that is of this plan and whole
    failures: dict[str, Failure] = field(default_factory=dict)  # of stages, such as ``reduce``
    suspects: Mapping[str, Failure] = field(default_factory=dict)  # GPUs that failed, by UUID
    damage: Sequence[str] = ()  # one line for each of the first files that cannot be used
    living: bool | None = None  # whether a run or a task is at work; None if that is unknown
    command: str = ""  # which continues the run; empty if no run has left it
    stamps: Sequence[Any] = ()  # of the plan's files

    @cached_property
    def counts(self) -> dict[str, int]:
        """Shards by state: all of :data:`STATES`."""
        states = Counter(shard.state for shard in self.shards.values())
        return {state: states[state] for state in STATES}

    def of(self, *states: str) -> list[ShardStatus]:
        """The shards in some states, in the plan's order."""
        return [shard for shard in self.shards.values() if shard.state in states]

    def bytes(self, *states: str) -> int:
        """Bytes of the input of the shards in some states."""
        return sum(shard.bytes for shard in self.of(*states))

    @cached_property
    def failed(self) -> list[tuple[str, Failure]]:
        """What failed and was not mended: shards by id, stages by name; the newest first."""
        found = [(s.shard, s.failure) for s in self.shards.values() if s.failure]
        return sorted([*self.failures.items(), *found], key=lambda pair: -pair[1].at)

    def causes(self, run: str | None = None) -> Iterator[str]:
        """The same, or what failed in one run, in a line for each cause."""
        found = (why for _, why in self.failed if run in (None, why.run))
        return by_cause(found, self.results.root)

    @property
    def remarks(self) -> list[str]:
        """What cannot be used, and the GPUs that were blamed for a failure; one line each."""
        blamed = (f"{uuid} of {w.host} failed: {w.reason}" for uuid, w in self.suspects.items())
        return [*self.damage, *map(one_line, blamed)]

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the sum is right, as far as tasks and reduce proved it when they wrote."""
        if self.damage:
            kind, words = "damaged", f"Damaged: {self.damage[0]}"
            if self.plan:
                bad = [shard.shard for shard in self.of(DAMAGED)]
                files = [] if bad else [self.results.summary]
                repair = ledger.build_repair(self.plan, bad[:_MOST_NAMED], files)
                words += f"; to make it again: {repair}, then start the run again"
                more = f" ({_MOST_NAMED} of {len(bad)}; shardwise verify prints the rm for all)"
                words += more * (len(bad) > _MOST_NAMED) + "."
        elif self.plan is None:
            kind = "empty"
            words = f"Nothing is here yet: {self.results.root} holds no plan of a run."
        elif self.counts[DONE] < len(self.shards) or self.summary is None:
            kind = "failed" if self.failed else "unfinished"
            stages = (f"; {stage}: {why.reason}" for stage, why in self.failures.items())
            words = f"Not finished: {self.tally}{''.join(stages)}."
        elif not self.summary.proven:
            kind = "unproven"
            words = "The sum is whole, but nothing has proven it (verify: false, or your function)."
        else:
            kind, begin = "proven", "Proven"
            end = "except NaN and infinite numbers, so the sum was not compared with them"
            if self.summary.end_to_end:
                begin, end = "The sum is right", "and it agrees with them end to end"
            shards = count(len(self.shards), "shard")
            words = f"{begin}: all products of {shards} are proven, {end}."
        return Verdict(kind, one_line(words))

    @property
    def code(self) -> int:
        """The exit code of ``--once``: 0 all done, 75 unfinished, 3 the user has to act."""
        return VERDICTS[self.verdict.kind]

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for; a run that lives may yet replace an earlier sum."""
        return self.living is False or not (self.code or self.living)

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

    @cached_property
    def rate(self) -> float | None:
        """Input bytes per second in the minutes before the last shard was done; None if unknown.

        Pauses, as before a rerun, do not count.
        """
        done = self.of(DONE)
        now = max((one.finished for one in done), default=0.0)  # shards at work are unknown
        lately = [one for one in done if one.finished > now - _LATELY]
        took = busy(lately)
        if not took or self.living is False:
            return None
        return sum(one.bytes for one in lately) / took

    @property
    def left(self) -> float | None:
        """Seconds until no shard is running or waiting; None if unknown."""
        return self.bytes(RUNNING, WAITING) / self.rate if self.rate else None

    def json(self) -> dict[str, Any]:
        """Everything, for programs."""
        running = [
            {**vars(one.device), "shard": one.shard, "seconds": self.at - one.started}
            for one in self.of(RUNNING)
        ]
        return {
            "results": str(self.results.root), "at": self.at,
            "verdict": self.verdict.kind, "words": self.verdict.words, "code": self.code,
            "shards": {"all": len(self.shards), **self.counts},
            "bytes": {"done": self.bytes(DONE), "all": self.bytes(*STATES)},
            "bytes_per_second": self.rate, "seconds_left": self.left, "devices": running,
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


def by_cause(found: Iterable[Failure], root: Path) -> Iterator[str]:
    """A line for each cause of failures, the most frequent first; six lines at most."""
    causes = defaultdict[tuple[int, str], list[Failure]](list)
    for failure in sorted(found, key=lambda each: each.name):
        causes[failure.code, _OWN.sub("#", failure.reason)].append(failure)
    ordered = sorted(causes.values(), key=len, reverse=True)
    for same in ordered[:_MOST_CAUSES]:
        names = ", ".join(_shown(failure.name) for failure in same[:_MOST_NAMED])
        names += f" and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
        where = f" (log: {root / same[0].log})" if same[0].log else ""
        alike = " (and others like it)" * (len({each.reason for each in same}) > 1)
        yield f"failed: {names}: {same[0].reason}{alike}{where}"
    if rest := ordered[_MOST_CAUSES:]:
        yield f"and {sum(map(len, rest))} failures of {len(rest)} other causes: see {root}/failed"


def _shown(name: str) -> str:
    """A failure's name for people, without its key: of a shard's copy or product, or of a stage."""
    *copy, last = name.split("-")[:-1] or [name]
    return f"{'shard' if copy else 'multiply'} {last}" if last.isdigit() else last


def look(
    root: Path, at: float | None = None, before: Status | None = None, plan: Plan | None = None
) -> Status:
    """What a folder shows now, or at time ``at``; its content never makes this fail.

    ``before`` is an earlier look, whose plan and receipts are not read again. A run knows its
    ``plan``; for others it is the one in the folder.
    """
    results, damage = Results(root), list[str]()
    living = locks.is_living(results)  # asked first: what a run leaves at its end is seen below
    seen = Status(results, time.time() if at is None else at, living=living)
    seen.stamps = [stamp(path) for path in (results.plan, results.plan_facts)]
    known: dict[str, ShardStatus] = {}
    with suppress(ShardwiseError):
        command = (small.read(results.command) or b"").decode(errors="replace")
        seen.command = one_line(command.strip())
    try:
        if before and before.plan and before.stamps == seen.stamps:
            seen.plan, known = before.plan, {one.shard: one for one in before.of(DONE)}
        elif plan or all(seen.stamps):
            seen.plan = plan or plan_file.load(results.plan)
    except IntegrityError as error:
        damage.append(f"the plan: {error}")
    if plan := seen.plan:
        damage += _look_at_shards(plan, seen, known)
        for name in sorted(list_names(results.failed)):
            found = name.endswith(f"-{plan.key}.json") and failures.read(results.failed / name)
            if found:
                seen.failures[one_line(name.rpartition("-")[0])] = found
        seen.suspects = failures.suspects(results)
        try:
            seen.summary = Store(plan).finished()
        except IntegrityError as error:
            damage.append(str(error))
        except InputError:  # there is none
            pass
    seen.damage = [one_line(words) for words in damage[:20]]
    return seen


def _look_at_shards(plan: Plan, seen: Status, known: Mapping[str, ShardStatus]) -> list[str]:
    """Note the state of each shard; return what is wrong with the damaged ones."""
    results, store, flaws = plan.results, Store(plan), list[str]()
    # Listed in the order in which a task writes them: one that ends meanwhile is not missed.
    at_work = seen.living is None or locks.is_job_locked(results.living)
    begun = list_names(results.starts("any").parent) if at_work else set()
    failed, made = list_names(results.failed), list_names(results.products)
    since = (stamp(results.command) or (0, 0))[0] / 1e9  # each run writes it as it begins
    for shard, row in plan.shards.items():
        one, name = ShardStatus(shard, WAITING, row.bytes), place(row.name)
        seen.shards[shard] = one
        if f"{name}.json" in made and f"{name}.npy" in made:
            if shard in known:
                seen.shards[shard] = known[shard]
                continue
            try:
                own = store.receipt(shard)
                one.state, one.device = DONE, Device(own.device.name, own.device.uuid, own.node)
                one.started, one.finished, one.held = own.started, own.finished, own.held
            except receipts.NoReceipt:  # removed since the folder was listed
                pass
            except IntegrityError as error:
                one.state = DAMAGED
                flaws.append(str(error))
            continue
        files = failed.intersection((f"{name}.json", f"copy-{row.input_name}.json"))
        found = filter(None, (failures.read(results.failed / file) for file in files))
        if why := max(found, key=lambda failure: failure.at, default=None):
            one.state, one.failure = FAILED, why
        start = last_start(results.starts(row.name)) if f"{name}.starts" in begun else None
        if start and start.at >= max(since, why.at if why else 0.0):
            one.state, one.failure, one.started = RUNNING, None, start.at
            uuid = start.uuid and one_line(start.uuid)
            one.device = Device(one_line(start.device), uuid, one_line(start.node))
    return flaws
