"""`shardwise plan --quote`: what a run would take; with ``--trial``, how long it would last."""

import sys
import time
from argparse import Namespace

from shardwise.command.from_python import follow
from shardwise.errors import InputError, shown
from shardwise.plan import planner
from shardwise.plan.config import Settings
from shardwise.plan.plan import Plan
from shardwise.records.quote import amounts, quote, replaced
from shardwise.records.store import Store
from shardwise.units import count, human_bytes, seconds

_TRIED = 2  # shards of a trial
_MARGIN = 1.3  # by which most predictions that we compared were wrong: docs/quote.md


def show(plan: Plan, settings: Settings, options: Namespace) -> None:
    """Print the quote of a run; a trial computes some of its shards first."""
    free, store, devices = planner.check_folder(plan), Store(plan), options.devices or 1
    trial = options.trial and bool(store.missing())
    if trial:
        ends, rate = try_shards(plan, settings, options.profile or "local")
    missing = store.missing()
    said = f"{plan.results.root}: nothing is left to do"
    if missing or not store.is_summed(settings.reduce["statistics"]):
        shards = f"{len(missing)} of {count(len(plan.shards), 'shard')} to compute"
        said = f"{plan.results.root}: {shards}; the disk has {human_bytes(free)} free\n"
        said += quote(plan, settings.reduce, missing)
        said += "\ntime not known; --trial predicts it" * (not trial)
    if trial:
        work = rate * sum(amounts(plan, missing))
        busiest = -(-len(missing) // devices)  # how many shards the busiest device computes
        likely = ends + work * busiest / max(1, len(missing))
        spread = f"{seconds(likely / _MARGIN)} to {seconds(likely * _MARGIN)}"
        said += f"\ntime {seconds(likely)} with {count(devices, 'device')} ({spread}), "
        said += f"which compute for {work / 3600:.3g} hours in all"
    sys.stdout.write(f"{shown(said)}\n")


def try_shards(plan: Plan, settings: Settings, profile: str) -> tuple[float, float]:
    """Run two of the missing shards, whose products stay; return two times, in seconds.

    That of the ends of a run, and that for each byte which a shard reads or writes. Raises the
    ShardwiseError for the exit code of the run, if it failed.
    """
    store, results = Store(plan), plan.results
    if told := replaced(plan):
        raise InputError(f"--trial would begin a run, but {told}")
    missing = store.missing()
    if len(missing) <= _TRIED:
        raise InputError(
            f"--trial: {results.root} lacks {count(len(missing), 'shard')}, but a trial computes "
            f"{_TRIED} to predict the others; start the run, or set a smaller shard_bytes"
        )
    shards = missing[(len(missing) - _TRIED) // 2 :][:_TRIED]  # the last may be smaller
    rows, began = [plan.shards[shard] for shard in shards], time.time()
    alone = Settings(**{**vars(settings), "dispatch": "jobs"})  # no plan depends on dispatch
    files = [str(results.product(row.name)) for row in rows]
    follow(alone, profile, "--cores", "1", "--jobs", "1", "--", *files)
    took = time.time() - began
    results.command.unlink(missing_ok=True)  # it would only make these shards
    made = [store.receipt(shard) for shard in shards]
    if any(own.adopted for own in made):
        raise InputError("--trial: earlier products were kept: nothing was measured; start the run")
    copies = map(store.copy_receipt, shards if plan.settings.materialize else [])
    began = min(own.started for own in [*copies, *made] if own.started >= began)
    span = max(own.finished for own in made) - began
    return took - span, span / sum(amounts(plan, shards))
