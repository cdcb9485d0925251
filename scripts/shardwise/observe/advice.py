"""What to change for a faster run next time, derived from what a run has measured.

Pure: an observation in, sentences out, the one that saves most first. Each rule looks for one cause
of lost time and is silent where it does not find it; of a short run nothing is said. Only rules
that were right in practice are here (docs/report.md). Seconds saved are estimates that rank them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import pandas as pd

from shardwise.errors import some
from shardwise.observe import run_table
from shardwise.observe.observation import Observation
from shardwise.observe.run_table import RunTable, joined, throttled
from shardwise.records.timeline import PHASES, length
from shardwise.units import count, decimal, plain, seconds, share

WORTH_SHARE = 0.03
"""What saves a smaller part of the run is not said: times of runs differ by as much anyway."""

DISK_SHARE = 0.5
"""Of the shards' time: from there on, the disk is what holds them up."""

IDLE_SHARE, FEWEST_GAPS = 0.15, 3
"""Of a device's time between shards, and how often: one pause may have any cause."""

QUEUE_SECONDS = 60.0
"""A longer pause is the queue of a cluster; no start of a process takes so long."""


@dataclass(frozen=True)
class Advice:
    """What to change, the measurements that say so, and the config key with the value to set.

    ``seconds`` are about how much sooner the shards would be done; 0 where nobody can tell.
    """

    words: str
    evidence: str
    key: str | None
    seconds: float = 0.0


def advise(seen: Observation, run: RunTable | None = None) -> list[Advice]:
    """What to change for a faster run next time; nothing where nothing is known."""
    run = run or run_table.of(seen)
    if not run.enough or seen.plan is None:
        return []
    found = [advice for rule in RULES if (advice := rule(run)) is not None]
    worth = [advice for advice in found if advice.seconds >= WORTH_SHARE * run.seconds]
    return sorted(worth, key=lambda advice: -advice.seconds)


def idle_between_jobs(run: RunTable) -> Advice | None:
    """Devices do nothing between one process and the next."""
    gaps = [gap for _, shards in run.timed.groupby("key") for gap in _gaps(shards)]
    devices = len(run.devices)
    # A run that was continued on another day has left one pause per device.
    if len(gaps) < max(FEWEST_GAPS, 2 * devices):
        return None
    usual = median(gaps)
    lost, busy = usual * len(gaps) / devices, float(run.devices.busy.mean())
    if lost < IDLE_SHARE * (lost + busy):
        return None
    cause = "waiting in the queue" if usual > QUEUE_SECONDS else "one process ended, the next began"
    return Advice(
        "Keep one process on each device from shard to shard: `dispatch: pool` on one node, "
        "`dispatch: array` or `dispatch: mpi` on several.",
        f"Between two shards a device was idle for {seconds(usual)} (median of "
        f"{count(len(gaps), 'pause')}), {share(lost / (lost + busy))} of its time: {cause}.",
        "dispatch: pool", lost,
    )  # fmt: skip


def _gaps(shards: pd.DataFrame) -> list[float]:
    """Seconds between the shards of a device where one process has ended and another begun."""
    gaps, last, process = [], None, None
    for row in shards.itertuples():
        if last and row.begin > last and row.process != process:
            gaps.append(row.begin - last)
        if last is None or row.end > last:
            last, process = row.end, row.process
    return gaps


def disk_bound(run: RunTable) -> Advice | None:
    """Reading and writing hold the shards up."""
    total, disk = sum(run.held.values()), run.held["read"] + run.held["write"]
    spent = sum(length(joined(own)) for _, own in run.timed.groupby("node"))
    if min(total, spent) <= 0 or disk < DISK_SHARE * total:
        return None
    moved = float(run.timed.work_read.sum() + run.timed.work_write.sum())
    speed = moved / spent
    return Advice(
        "The disk limits this run, not the devices. More nodes, or a faster disk, would help; "
        "more or faster devices would not. `python benchmarks/raw.py` measures what the disk can "
        "do: if that is more, give each task more CPU cores.",
        f"Reading and writing held the shards up for {share(disk / total)} of their time, at "
        f"{decimal(speed, 'B/s')} per node.",
        None, disk / total * run.seconds / 2,
    )  # fmt: skip


def slow_device(run: RunTable) -> Advice | None:
    """A device takes longer than the others of its kind."""
    if run.slow.empty:
        return None
    slow = run.slow.iloc[0]
    peers = run.devices[(run.devices.kind == slow.kind) & (run.devices.index != slow.name)]
    matrices = run.timed.groupby("key").matrices.sum()
    extra = {
        phase: slow[f"held_{phase}"] / matrices.get(slow.name, 1)
        - float((peers[f"held_{phase}"] / matrices).median())
        for phase in PHASES
    }
    phase = max(PHASES, key=extra.__getitem__)
    evidence = (
        f"{slow.label} took {slow.slower:.1f} times as long per matrix as the others of its kind, "
        f"most of it in {phase}."
    )
    own = run.timed[run.timed.key == slow.name].shard
    for reason, spent in throttled([run.seen.shards[shard] for shard in own]).items():
        evidence += f" It was slowed down by {reason} for {seconds(spent)}."
    if len(run.slow) > 1:
        evidence += f" {count(len(run.slow) - 1, 'more device')} are slow, too."
    words = f"Have {slow.label} looked at: power limit, cooling, its link, and who else uses it."
    if len(set(run.devices.node)) > 1:
        words += f" Or leave {plain(slow.node)} out (`--exclude` in `slurm_extra` in the profile)."
    return Advice(words, evidence, None, slow.busy * (1 - 1 / slow.slower) / len(run.devices))


def failed_attempts(run: RunTable) -> Advice | None:
    """Attempts were lost."""
    again = run.done[run.done.attempts > 1]
    if again.empty:
        return None
    extra = int((again.attempts - 1).sum())
    lost = extra * float(run.done.seconds.mean()) / 2 / len(run.devices)  # they fail half-way
    return Advice(
        "Find out in the logs of these shards why attempts failed: out of memory asks for more "
        "`mem_mb`, out of time for more `runtime`, a device that fails for another node.",
        f"{count(extra, 'attempt')} failed before the shards were done: "
        f"{plain(some(again.shard, 5))}.",
        None, lost,
    )  # fmt: skip


RULES: Sequence[Callable[[RunTable], Advice | None]] = (
    idle_between_jobs, disk_bound, slow_device, failed_attempts,
)  # fmt: skip
"""All that is looked for."""
