"""`shardwise plan --quote`: what a run would take; with ``--trial``, how long it would last."""

import sys
import time
from argparse import Namespace

from shardwise.command.from_python import follow
from shardwise.command.runs import line_of
from shardwise.errors import InputError
from shardwise.plan import planner
from shardwise.plan.config import Settings
from shardwise.plan.plan import Plan
from shardwise.records import receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt
from shardwise.records.store import Store, amounts, quote
from shardwise.units import count, human_bytes, seconds

_TRIED = 2  # shards of a trial
_MARGIN = 1.3  # by which most predictions that we compared were wrong: docs/quote.md


def show(plan: Plan, settings: Settings, options: Namespace) -> None:
    """Print the quote of a run; a trial computes some of its shards first."""
    free, time_line = planner.check_folder(plan), "time not known; --trial predicts it"
    if options.trial:
        ends, work = try_shards(plan, settings, options.profile or "local")
        devices = options.devices or 1
        likely = predict(ends, work, plan, devices)
        spread = f"{seconds(likely / _MARGIN)} to {seconds(likely * _MARGIN)}"
        hours = work * sum(amounts(plan, Store(plan).missing())) / 3600
        time_line = (
            f"time {seconds(likely)} with {count(devices, 'device')} ({spread}), which compute for "
            f"{hours:.3g} hours in all"
        )
    sys.stdout.writelines(f"{line}\n" for line in [*describe(plan, settings, free), time_line])


def describe(plan: Plan, settings: Settings, free: int) -> list[str]:
    """The lines of a quote; ``free`` are the bytes that the disk has left."""
    missing = Store(plan).missing()
    if not missing and Store(plan).is_summed(settings.reduce["statistics"]):
        return [f"{plan.results.root}: nothing is left to do"]
    shards = f"{len(missing)} of {count(len(plan.shards), 'shard')} to compute"
    own = quote(plan, settings.reduce, missing)
    return [f"{plan.results.root}: {shards}; the disk has {human_bytes(free)} free", own]


def predict(ends: float, work: float, plan: Plan, devices: int) -> float:
    """Seconds of the whole run: its begin and end, and the work of the busiest device.

    ``ends`` are the seconds of the first, ``work`` those of each byte that a shard reads or writes.
    """
    missing = Store(plan).missing()
    busiest = -(-len(missing) // devices) / max(1, len(missing))
    return ends + busiest * sum(amounts(plan, missing)) * work


def try_shards(plan: Plan, settings: Settings, profile: str) -> tuple[float, float]:
    """Run two of the missing shards, whose products stay; return what `predict` takes.

    Raises the ShardwiseError for the exit code of the run, if it failed.
    """
    missing, results = Store(plan).missing(), plan.results
    if len(missing) <= _TRIED:
        raise InputError(
            f"--trial: {results.root} lacks {count(len(missing), 'shard')}, but a trial computes "
            f"{_TRIED} to predict the others; start the run, or set a smaller shard_bytes"
        )
    shards = missing[(len(missing) - _TRIED) // 2 :][:_TRIED]  # the last may be smaller
    rows = [plan.shards[shard] for shard in shards]
    alone = Settings(**{**vars(settings), "dispatch": "jobs"})  # no plan depends on dispatch
    files = [str(results.product(row.name)) for row in rows]
    began = time.time()
    follow(line_of(alone, profile, "--cores", "1", "--jobs", "1", "--", *files))
    took = time.time() - began
    made = [receipts.read(results.receipt(row.name), ProductReceipt) for row in rows]
    if any(own.adopted for own in made):
        raise InputError("--trial: earlier products were kept: nothing was measured; start the run")
    copied = rows if plan.settings.materialize else []
    copies = [receipts.read(results.shard_receipt(row.input_name), CopyReceipt) for row in copied]
    began = min(own.started for own in [*copies, *made] if own.started >= began)
    span = max(own.finished for own in made) - began
    return took - span, span / sum(amounts(plan, shards))
