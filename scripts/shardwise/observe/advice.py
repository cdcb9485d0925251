"""What to change for a faster run next time, derived from what a run has measured.

Pure: an observation in, sentences out. Each rule looks for one cause of lost time, and says nothing
if it does not find it; a short run gets no advice. The rules here are those that proved right in
practice (docs/report.md).
"""

from dataclasses import dataclass

import pandas as pd

from shardwise.errors import some
from shardwise.observe.run_table import RunTable, joined
from shardwise.records.timeline import STAGES, length
from shardwise.units import count, decimal, plain, seconds, share

DISK_SHARE = 0.5
"""A share of the time in which any stage was at work: from there on the disk is the bottleneck."""

IDLE_SHARE, FEWEST_GAPS = 0.15, 3
"""A device's idle share, and the fewest pauses: a single pause may have any cause."""

QUEUE_SECONDS = 60.0
"""A longer pause is the queue of a cluster; starting a process never takes that long."""


@dataclass(frozen=True)
class Advice:
    """What to change, and the measurements that say so."""

    words: str
    evidence: str


def advise(run: RunTable) -> list[Advice]:
    """What to change for a faster run next time; nothing where nothing is known."""
    rules = (idle_between_jobs, disk_bound, slow_device, failed_attempts) if run.enough else ()
    return [advice for rule in rules if (advice := rule(run)) is not None]


def idle_between_jobs(run: RunTable) -> Advice | None:
    """Devices are idle between one process and the next."""
    gaps, devices = _gaps(run.timed), len(run.devices)
    # A run that was continued on another day has left one pause per device.
    if len(gaps) < max(FEWEST_GAPS, 2 * devices):
        return None
    usual = float(gaps.median())
    lost, busy = usual * len(gaps) / devices, float(run.devices.busy.mean())
    if lost < IDLE_SHARE * (lost + busy):
        return None
    cause = "waiting in the queue" if usual > QUEUE_SECONDS else "one process ended, the next began"
    return Advice(
        "Keep one process on each device from shard to shard: `dispatch: pool` on one node, "
        "`dispatch: array` or `dispatch: mpi` on several.",
        f"Between two shards a device was idle for {seconds(usual)} (median of "
        f"{count(len(gaps), 'pause')}), {share(lost / (lost + busy))} of its time: {cause}.",
    )


def _gaps(shards: pd.DataFrame) -> pd.Series:
    """Seconds in which a device had no shard, between one process and the next."""
    before = shards.groupby("key")[["process", "end"]].shift()
    ended = before.end.groupby(shards.key).cummax()
    return (shards.begin - ended)[(shards.begin > ended) & (shards.process != before.process)]


def disk_bound(run: RunTable) -> Advice | None:
    """Reading and writing hold the shards up."""
    held = run.timed[[f"held_{stage}" for stage in STAGES]].sum()
    total, disk = float(held.sum()), float(held.held_read + held.held_write)
    spent = sum(length(joined(own)) for _, own in run.timed.groupby("node"))
    if min(total, spent) <= 0 or disk < DISK_SHARE * total:
        return None
    return Advice(
        "The disk limits this run, not the devices. More nodes, or a faster disk, would help; "
        "more or faster devices would not. `python benchmarks/raw.py` measures what the disk can "
        "do: if that is more, give each task more CPU cores.",
        f"Reading and writing held shards up for {share(disk / total)} of the time in which any "
        f"stage was at work, at {decimal(float(run.timed.moved.sum()) / spent, 'B/s')} per node.",
    )


def slow_device(run: RunTable) -> Advice | None:
    """A device takes longer than the others of its kind."""
    slow = run.devices[run.devices.index.isin(run.slow)].sort_values("slower", ascending=False)
    if slow.empty:
        return None
    worst = slow.iloc[0]
    words = f"Have {worst.label} looked at: power limit, cooling, its link, and who else uses it."
    if len(set(run.devices.node)) > 1:
        words += f" Or leave {plain(worst.node)} out (`--exclude` in `slurm_extra` in the profile)."
    evidence = f"It took {worst.slower:.1f} times as long per matrix as the others of its kind."
    if len(slow) > 1:
        evidence += f" Of {len(run.devices)} devices {len(slow)} are slow."
    return Advice(words, evidence)


def failed_attempts(run: RunTable) -> Advice | None:
    """Attempts were lost."""
    again = run.done[run.done.attempts > 1]
    if again.empty:
        return None
    return Advice(
        "Find out in the logs of these shards why attempts failed: out of memory asks for more "
        "`mem_mb`, out of time for more `runtime`, a device that fails for another node.",
        f"{count(int((again.attempts - 1).sum()), 'attempt')} failed before the shards were done: "
        f"{plain(some(again.shard, 5))}.",
    )
