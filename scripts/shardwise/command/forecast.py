"""`shardwise plan --quote`: what a run would take; with ``--trial``, how long it would last."""

import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from operator import sub
from statistics import mean, median

from shardwise.command.runs import line_of
from shardwise.errors import InputError
from shardwise.plan import planner
from shardwise.plan.config import Settings
from shardwise.plan.plan import Plan
from shardwise.records import receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt
from shardwise.records.store import Quote, Store, amounts, quote
from shardwise.units import count, human_bytes, seconds

_TRIED = 2  # shards of a trial
_LAST_JOBS = 3  # ledger, reduce, report
_MARGIN = 0.2  # widens the range each way, as a few shards do not show all of it


@dataclass(frozen=True)
class Trial:
    """What a trial measured: times in seconds, those of bytes per byte."""

    ends: float  # of a run: before its first job and after its last
    start: float  # of a job
    work: list[float]  # of each shard, with its copy
    reduce: float
    last: int  # how many jobs end the run, with a start each
    device: str  # which computed the shards


def show(plan: Plan, settings: Settings, options: Namespace) -> None:
    """Print the quote of a run; a trial computes some of its shards first."""
    free, time_line = planner.check_folder(plan), "time not known; --trial predicts it"
    own = quote(plan, settings.reduce, Store(plan).missing())
    if options.trial:
        devices = options.devices or 1
        trial = try_shards(plan, settings, own, options.profile)
        own = quote(plan, settings.reduce, Store(plan).missing())
        likely, least, most, busy = forecast(trial, own, settings, devices)
        time_line = (
            f"time {seconds(likely)} with {count(devices, 'device')} ({seconds(least)} to "
            f"{seconds(most)}); {busy / 3600:.3g} hours of {trial.device} in all"
        )
    sys.stdout.writelines(f"{line}\n" for line in [*describe(plan, settings, own, free), time_line])


def describe(plan: Plan, settings: Settings, own: Quote, free: int) -> list[str]:
    """The lines of a quote; ``free`` are the bytes that the disk has left."""
    if not own.shards and Store(plan).is_summed(settings.reduce["statistics"]):
        return [f"{plan.results.root}: nothing is left to do"]
    jobs = len(own.shards) + len(own.copies) if settings.dispatch == "jobs" else bool(own.shards)
    files = plan.results.plan_files(plan.mark, plan.facts.per_matrix)
    jobs += _LAST_JOBS + (not all(path.exists() for path in files)) + bool(own.written["input"])
    shards = f"{len(own.shards)} of {count(len(plan.shards), 'shard')} to compute"
    disk = f"the disk has {human_bytes(free)} free"
    return [f"{plan.results.root}: {shards}; {disk}", own.line(jobs)]


def forecast(
    trial: Trial, own: Quote, settings: Settings, devices: int
) -> tuple[float, float, float, float]:
    """Seconds of the whole run: likely, at least, at most; then device seconds in all."""
    shards = len(own.shards)
    jobs = shards + len(own.copies) if settings.dispatch == "jobs" else min(shards, devices)
    share = -(-shards // devices) / max(1, shards)
    summing = own.read["for the sum"] * trial.reduce / settings.reduce["ranks"]
    fixed = trial.ends + trial.last * trial.start + summing

    def busy(rate: float) -> float:
        return jobs * trial.start + own.work * rate

    rates = mean(trial.work), min(trial.work), max(trial.work)
    likely, least, most = (fixed + share * busy(rate) for rate in rates)
    return likely, least / (1 + _MARGIN), most * (1 + _MARGIN), busy(mean(trial.work))


def try_shards(plan: Plan, settings: Settings, own: Quote, profile: str) -> Trial:
    """Run two of the missing shards, one after the other; their products stay.

    Raises the ShardwiseError for the exit code of the run, if it failed.
    """
    from shardwise.command.from_python import follow  # here: no other plan needs pandas

    if len(own.shards) <= _TRIED:
        raise InputError(
            f"--trial: {plan.results.root} lacks {count(len(own.shards), 'shard')}, but a trial "
            f"computes {_TRIED} to predict the others; start the run, or set a smaller shard_bytes"
        )
    shards = own.shards[(len(own.shards) - _TRIED) // 2 :][:_TRIED]  # the last may be smaller
    files = [str(plan.results.product(plan.shards[shard].name)) for shard in shards]
    alone = Settings(**{**vars(settings), "dispatch": "jobs"})  # no plan depends on dispatch
    began = time.time()
    follow(line_of(alone, profile, "--cores", "1", "--jobs", "1", "--", *files))
    return _measure(plan, shards, began, time.time())


def _measure(plan: Plan, shards: list[str], began: float, ended: float) -> Trial:
    """Times of a trial from its receipts."""
    results, rows = plan.results, [plan.shards[shard] for shard in shards]
    made = [receipts.read(results.receipt(row.name), ProductReceipt) for row in rows]
    if any(receipt.adopted for receipt in made):
        raise InputError("--trial: earlier products were kept: nothing was measured; start the run")
    copied = rows if plan.settings.materialize else []
    copies = [receipts.read(results.shard_receipt(r.input_name), CopyReceipt) for r in copied]
    jobs = [*(copy for copy in copies if copy.started >= began), *made]
    begins, ends = sorted(job.started for job in jobs), sorted(job.finished for job in jobs)
    start = max(0.0, median(map(sub, begins[1:], ends)))
    spent = {s: sum(job.finished - job.started for job in jobs if job.shard == s) for s in shards}
    checked = time.perf_counter()
    receipts.check_elements(results.product(rows[0].name), made[0].file)
    return Trial(
        ends=max(0.0, begins[0] - began - start) + ended - ends[-1],
        start=start,
        work=[spent[shard] / sum(amounts(plan, [shard])) for shard in shards],
        reduce=(time.perf_counter() - checked) / made[0].file.bytes,
        last=1 if made[0].job else _LAST_JOBS,  # under a scheduler only the reduce is a job
        device=made[0].device.name,
    )
