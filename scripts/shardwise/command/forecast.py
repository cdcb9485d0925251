"""`shardwise plan --quote`: what a run would take; with ``--trial``, how long it would last."""

import os
import shlex
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import sub
from pathlib import Path
from statistics import mean, median

from shardwise.command.runs import line_of
from shardwise.errors import InputError, ShardwiseError, of_code
from shardwise.host import TYPED
from shardwise.plan import planner
from shardwise.plan.config import Settings
from shardwise.plan.plan import Plan
from shardwise.records import receipts
from shardwise.records.quote import Quote, quote
from shardwise.records.receipts import CopyReceipt, ProductReceipt, Receipt, StackReceipt
from shardwise.records.store import Store, amounts
from shardwise.units import count, decimal, human_bytes, seconds

_TRIED = 2  # shards per lane of a trial, one after the other
_AT_ONCE = 2  # the most lanes side by side: jobs that share a machine slow each other
_LAST_JOBS = 3  # ledger, reduce, report
_MARGIN = 0.2  # widens the range each way, as a few shards do not show all of it


@dataclass(frozen=True)
class Trial:
    """What a trial measured: ``ends`` of a run and ``start`` of a job in seconds, others per byte.

    ``work`` has the seconds per byte of each shard. ``last`` counts the jobs that end the run, with
    a start each. ``device`` is the name of the device that computed the shards.
    """

    ends: float
    start: float
    work: list[float]
    copy: float
    reduce: float
    last: int
    device: str


def show(plan: Plan, settings: Settings, options: Namespace) -> None:
    """Print the quote of a run; a trial computes some of its shards first."""
    free, timing = planner.check_folder(plan), iter(["time    not known; --trial predicts it"])
    own = quote(plan, settings.reduce, Store(plan).missing())
    if options.trial:
        devices = options.devices or 1
        trial = try_shards(plan, settings, own, options, devices)
        own = quote(plan, settings.reduce, Store(plan).missing())
        timing = describe_time(trial, own, settings, devices)
    sys.stdout.writelines(f"{line}\n" for line in describe(plan, settings, own, free, timing))


def describe(
    plan: Plan, settings: Settings, own: Quote, free: int, timing: Iterable[str]
) -> Iterator[str]:
    """The lines of a quote; ``free`` are the bytes that the disk has left."""

    def listed(parts: dict[str, int]) -> str:
        named = ", ".join(f"{human_bytes(size)} {name}" for name, size in parts.items() if size)
        return f"{human_bytes(sum(parts.values()))}: {named}"

    if not own.shards and Store(plan).is_summed(settings.reduce["statistics"]):
        yield f"{plan.results.root}: nothing is left to do"
        return
    jobs = len(own.shards) + len(own.copies) if settings.dispatch == "jobs" else bool(own.shards)
    files = plan.results.plan_files(plan.mark, plan.facts.per_matrix)
    jobs += _LAST_JOBS + (not all(path.exists() for path in files)) + bool(own.written["input"])
    yield (
        f"{plan.results.root}: {len(own.shards)} of {count(len(plan.shards), 'shard')} to compute, "
        f"in {count(jobs, 'job')}"
    )
    yield f"reads   {listed(own.read)}"
    yield f"writes  {listed(own.written)}; the disk has {human_bytes(free)} free"
    yield f"memory  {own.memory} per task"
    yield from timing


def forecast(
    trial: Trial, own: Quote, settings: Settings, devices: int
) -> tuple[float, float, float, float]:
    """Seconds of the whole run: likely, at least, at most; then device seconds in all.

    A run's time is the sum of both ends, the starts, copies and work of the busiest device, the
    last jobs, and the reduce.
    """
    shards, jobs = len(own.shards), settings.dispatch == "jobs"
    starts = shards if jobs else min(shards, devices)  # of jobs, or of workers
    share = -(-shards // devices) / max(1, shards)
    copying = own.written["copies"] * trial.copy + jobs * len(own.copies) * trial.start
    summing = own.read["for the sum"] * trial.reduce / settings.reduce["ranks"]
    fixed = trial.ends + trial.last * trial.start + summing + share * copying

    def busy(rate: float) -> float:
        return starts * trial.start + own.work * rate

    rates = mean(trial.work), min(trial.work), max(trial.work)
    likely, least, most = (fixed + share * busy(rate) for rate in rates)
    return likely, least / (1 + _MARGIN), most * (1 + _MARGIN), busy(mean(trial.work))


def describe_time(trial: Trial, own: Quote, settings: Settings, devices: int) -> Iterator[str]:
    """The lines of a quote on the time left after a trial, and on what was measured."""
    likely, least, most, busy = forecast(trial, own, settings, devices)
    yield (
        f"time    {seconds(likely)} with {count(devices, 'device')} ({seconds(least)} to "
        f"{seconds(most)}); {busy / 3600:.3g} hours of {trial.device} in all"
    )
    yield (
        f"        measured: {seconds(trial.ends)} to start and end a run, {seconds(trial.start)} "
        f"to start a job, {decimal(1 / mean(trial.work), 'B/s')} per device, "
        f"{decimal(1 / trial.reduce, 'B/s')} per rank of the reduce"
    )
    yield "        not known: waits in a queue, other work on the machines, disks that get slower"


def try_shards(
    plan: Plan, settings: Settings, own: Quote, options: Namespace, devices: int
) -> Trial:
    """Run some typical shards, whose products stay: two in turn, or two such lanes at once.

    Raises
    ------
    InputError
        If fewer than three shards are missing, or one of those tried adopts an earlier product.
    ShardwiseError
        The error for the exit code of the run, if it failed.
    """
    from shardwise.command.from_python import follow  # here: no other plan needs pandas

    if len(own.shards) <= _TRIED:
        raise InputError(
            f"--trial: {plan.results.root} lacks {count(len(own.shards), 'shard')}, but a trial "
            f"computes {_TRIED} to predict the others; start the run, or set a smaller shard_bytes"
        )
    lanes = min(devices, _AT_ONCE, (len(own.shards) - 1) // _TRIED)
    some = own.copies if len(own.copies) > _TRIED * lanes else own.shards
    shards = choose_typical({shard: plan.shards[shard].bytes for shard in some}, _TRIED * lanes)
    files = [str(plan.results.product(plan.shards[shard].name)) for shard in shards]
    alone = replace(settings, dispatch="jobs")  # no plan depends on dispatch
    line = line_of(
        alone, options.profile, "--cores", str(lanes), "--jobs", str(lanes), "--", *files
    )
    # What is printed to continue is the command that computes all shards.
    named = shutil.which("shardwise") == str(Path(sys.executable).with_name("shardwise"))
    program = ["shardwise"] if named else [sys.executable, "-P", "-m", "shardwise.command"]
    own_files = ["--configfile", *map(str, options.configfile)] if options.configfile else []
    os.environ[TYPED] = shlex.join([*program, "run", "--profile", options.profile, *own_files])
    began = time.time()
    try:
        follow(line)
    except ShardwiseError as error:
        reason = "--trial: the run of its shards has failed; its messages are above"
        raise of_code(error.exit_code, reason) from None
    return _measure(plan, shards, lanes, (began, time.time()))


def choose_typical(sizes: dict[str, int], most: int) -> list[str]:
    """Up to ``most`` shards from the middle of those that have the most common size."""
    ((common, _),) = Counter(sizes.values()).most_common(1)
    shards = [shard for shard, nbytes in sizes.items() if nbytes == common]
    return shards[max(0, len(shards) - most) // 2 :][:most]


def _measure(plan: Plan, shards: list[str], lanes: int, run: tuple[float, float]) -> Trial:
    """Times of a trial from its receipts; ``run`` is when it began and ended, in Unix time."""

    def took(receipt: Receipt) -> float:
        return receipt.finished - receipt.started

    results, rows, stack = plan.results, [plan.shards[s] for s in shards], plan.synthetic_receipt
    made = [receipts.read(results.receipt(row.name), ProductReceipt) for row in rows]
    if any(receipt.adopted for receipt in made):
        raise InputError(
            "--trial: earlier products of the same matrices were reused, so nothing was measured; "
            "start the run"
        )
    copied = rows if plan.settings.materialize else []
    copies = [receipts.read(results.shard_receipt(r.input_name), CopyReceipt) for r in copied]
    copies = [copy for copy in copies if copy.started >= run[0]]
    first = [receipts.read(stack, StackReceipt)] if stack else []
    jobs = [*(own for own in first if own.started >= run[0]), *copies, *made]
    begins, ends = sorted(job.started for job in jobs), sorted(job.finished for job in jobs)
    start = max(0.0, median(map(sub, begins[lanes:], ends)))
    checked = time.perf_counter()
    receipts.check_elements(results.product(rows[0].name), made[0].file)
    return Trial(
        ends=max(0.0, begins[0] - run[0] - start) + run[1] - ends[-1],
        start=start,
        work=[took(own) / sum(amounts(plan, [own.shard])) for own in made],
        copy=mean([took(own) / own.file.bytes for own in copies] or [0.0]),
        reduce=(time.perf_counter() - checked) / made[0].file.bytes,
        last=1 if made[0].job else _LAST_JOBS,  # under a scheduler only the reduce is a job
        device=made[0].device.name,
    )
