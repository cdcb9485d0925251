"""How shards are shared out: makespans of unequal devices, and tiny shards under each dispatch.

The first table simulates workers of different speed, under our claims and under an even split. Each
makespan is divided by a bound that no schedule beats: the time if no worker idles, or that of the
largest shard on the fastest worker. The table has the mean and the worst of many drawn stacks.

The second table has a real Slurm, a real Grid Engine, and no scheduler. Each row is a whole run by
snakemake, with the profile as it is shipped; schedulers run on this one machine, as in the tests,
with pretended GPUs. All runs compute with NumPy, and their sums have to be exact. ``tasks`` is an
array of four tasks. Shards per second are counted from the start of the command to the end of the
last shard, and between the ends of the first and the last shard, by their receipts.
"""

import argparse
import contextlib
import heapq
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
from shardwise.work.claims import Round

from tests import places
from tests.clusters.cluster import session_cluster
from tests.workspace import Workspace

TASKS = 4
SPEEDS = (1, 2, 4)
SKEWED = 0.5  # standard deviation of the logarithm of a cost: one in 20 is over 2.3 medians


def by_claims(costs: Sequence[float]) -> float:
    """The time when the last worker ends, if each free worker claims the next block of `Round`."""
    blocks = iter(Round("", range(len(costs)), len(SPEEDS), 1).blocks())
    free = [(0.0, worker, list[int]()) for worker in range(len(SPEEDS))]
    last = 0.0
    while free:
        now, worker, own = heapq.heappop(free)
        if own := own or list(next(blocks, ())):
            end = now + costs[own[0]] / SPEEDS[worker]
            heapq.heappush(free, (end, worker, own[1:]))
        last = max(last, now)
    return last


def even_split(costs: Sequence[float]) -> float:
    """The same time, if all workers get equally many shards beforehand."""
    return max(np.sum(np.split(np.array(costs), len(SPEEDS)), axis=1) / SPEEDS)


def makespans(count: int) -> None:
    """A row for shards of equal cost, and one for drawn costs, 20 shards per worker."""
    harness.heading("costs", "stacks", "shardwise: mean", "worst", "even split", "worst")
    for name, stacks, spread in (("equal", 1, 0.0), ("skewed", count, SKEWED)):
        shape = stacks, 20 * len(SPEEDS)
        drawn = np.random.default_rng(0).lognormal(0, spread, shape).tolist()
        least = [max(sum(costs) / sum(SPEEDS), max(costs) / max(SPEEDS)) for costs in drawn]
        found = []
        for schedule in (by_claims, even_split):
            ratios = [schedule(own) / bound for own, bound in zip(drawn, least, strict=True)]
            found += [statistics.fmean(ratios), float(max(ratios))]
        harness.row(name, stacks, *found)


def run(folder: Path, place: Any, dispatch: str, shards: int) -> tuple[float, float]:
    """Both rates of a whole run; fails if its sum is wrong."""
    workspace = Workspace.create(folder, place.env(), place.enter(folder))
    # Small whole numbers: their sums are exact.
    stack = np.random.default_rng(0).integers(-9, 9, (shards, 8, 8)).astype("float64")
    np.save(workspace.root / "stack.npy", stack)
    own = {"input": "stack.npy", "shards": shards, "materialize": False, "backend": "numpy"}
    tasks = {"dispatch": "array", "array_tasks": TASKS}
    workspace.configure(**own, **(tasks if dispatch == "tasks" else {"dispatch": dispatch}))
    began = time.time()
    done = workspace.run(*place.quick, profile=place.profile, timeout=3600)
    assert not done.code, " ".join(done.output.split())[-300:]
    assert np.array_equal(workspace.load("sum.npy"), (stack @ stack).sum(axis=0)), "a wrong sum"
    receipts = workspace.file("products").rglob("*.json")
    ends = [json.loads(path.read_bytes())["finished"] for path in receipts]
    return shards / (max(ends) - began), (shards - 1) / (max(ends) - min(ends))


def main() -> None:
    """Measure all dispatches under each scheduler, in a folder that is removed afterwards."""
    kinds = ["jobs", "array", "tasks", "pool", "mpi"]
    where = ["local", *places.KINDS]
    defaults = {"places": where, "dispatch": kinds, "shards": 1000, "stacks": 1000}
    options = harness.options(__doc__, {"shards": 6, "stacks": 3}, **defaults)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no scheduler is left behind
    harness.say(f"Dispatch, {harness.machine()}")
    makespans(options.stacks)
    harness.heading("scheduler", "dispatch", "shards", "shards per second", "after the first")
    local = contextlib.nullcontext(places.Local())
    with tempfile.TemporaryDirectory() as root:
        for name in options.places:
            with session_cluster(name, places.KINDS[name]) if name != "local" else local as place:
                measure(Path(root, name), place, options)


def measure(root: Path, place: Any, options: argparse.Namespace) -> None:
    """A row for each dispatch."""
    # An array without a scheduler has no meaning.
    skipped = ("array", "tasks") if root.name == "local" else ()
    for dispatch in [name for name in options.dispatch if name not in skipped]:
        shards = max(2, options.shards // 10) if dispatch == "jobs" else options.shards
        try:
            rates = run(root / dispatch, place, dispatch, shards)
            harness.row(root.name, dispatch, shards, *rates)
        except Exception as error:  # the next one may do better
            harness.note(f"{root.name}, {dispatch}: {error!r}")


if __name__ == "__main__":
    main()
