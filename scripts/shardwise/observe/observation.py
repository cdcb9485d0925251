"""The records that describe a results folder: shards, devices, failures, the whole.

`shardwise.observe.folder` fills them in; whoever shows a run takes them from there.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records.receipts import Held, SumReceipt

DONE, RUNNING, FAILED, WAITING, DAMAGED = "done", "running", "failed", "waiting", "damaged"
"""States of a shard: a whole product of this plan; a task at work on it; the last task that began
it has ended without one; none has begun it; what lies there cannot be used."""

STATES = DONE, RUNNING, FAILED, WAITING, DAMAGED


@dataclass(frozen=True)
class DeviceOfNode:
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


@dataclass(frozen=True)
class FailureReason:
    """Why the last attempt of a shard, or of a stage, ended without a result."""

    reason: str  # in one line, as its log says it
    # The log that has more, relative to the results folder; None if there is none.
    log: str | None
    at: float | None  # seconds of Unix time, where known


@dataclass(frozen=True, slots=True)
class Sighting:
    """One shard of the plan, as it is now; None stands for anything unknown."""

    shard: str
    state: str
    matrices: int  # of its input, as bytes are
    bytes: int
    attempts: int = 0  # how many tasks have begun the shard
    started: float | None = None  # seconds of Unix time, of the receipt or of the task at work
    finished: float | None = None
    device: DeviceOfNode | None = None
    proven: bool | None = None  # this and the next are from the receipt
    held: Held | None = None
    # Share of its matrices that are multiplied, 0 to 1, where a task at work says so.
    progress: float | None = None
    # Why its last attempt failed; None if that is running or has succeeded.
    failure: FailureReason | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took; None if it is not done."""
        if self.state != DONE or self.started is None or self.finished is None:
            return None
        return max(0.0, self.finished - self.started)


@dataclass(frozen=True)
class Verdict:
    """Whether the number is right, in a word and in a sentence for a tired person.

    ``kind`` is ``proven``, ``unproven`` (all there, nothing proved it), ``unfinished``, ``failed``,
    ``damaged`` or ``empty``.
    """

    kind: str
    words: str


@dataclass(frozen=True)
class Observation:
    """A results folder at one moment."""

    results: Results
    at: float  # seconds of Unix time
    plan: Plan | None  # None if there is none, or none that can be read; ``problems`` says why
    shards: Mapping[str, Sighting]  # in the plan's order
    # The receipt of the reduce; None if there is none that can be read.
    summary: SumReceipt | None
    quarantined: tuple[()] = ()  # devices that no task takes at present
    # Of stages that are of no single shard, by their rule.
    failures: Mapping[str, FailureReason] = field(default_factory=dict)
    # One line each: what cannot be read, or is of another version, and what to do.
    problems: tuple[str, ...] = ()
    # Why the summary does not fit, if there is one: ``damaged``, or ``unfinished`` if the next run
    # makes it again by itself.
    flaw: Verdict | None = None

    @cached_property
    def counts(self) -> dict[str, int]:
        """Shards by state: all of :data:`STATES`."""
        states = Counter(shard.state for shard in self.shards.values())
        return {state: states[state] for state in STATES}

    @cached_property
    def done(self) -> list[Sighting]:
        """The shards that are done."""
        return [shard for shard in self.shards.values() if shard.state == DONE]

    @property
    def summary_fits(self) -> bool:
        """Whether the summary is of the present plan and products."""
        return None not in (self.plan, self.summary) and self.flaw is None
