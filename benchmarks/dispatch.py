"""Tiny shards under each dispatch, on a real Slurm, a real Grid Engine and with no scheduler.

Each row is a whole run by snakemake, with the profile as it is shipped; schedulers run on this one
machine, as in the tests, with pretended GPUs. All compute with NumPy, and the sum has to be exact.
Times are those of receipts and of summary.json.
"""

import argparse
import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import harness
import numpy as np

sys.path.insert(0, str(harness.REPO))

from tests.workspace import Workspace

PROFILES = {"none": "local", "slurm": "slurm", "uge": "uge"}
DISPATCHES = ("jobs", "array", "tasks", "pool", "mpi")
TASKS = 4
"""Of an array whose tasks take shard after shard: the row `tasks`."""

DIM = 8
LIMIT_SECONDS = 3600

# Snakemake looks at its jobs as often for each dispatch, and more often than it should on a real
# site, whose jobs last longer than these.
QUICK = {
    "none": (),
    "slurm": ("--slurm-init-seconds-before-status-checks", "2"),
    "uge": ("--seconds-between-status-checks", "1"),
}


@contextlib.contextmanager
def cluster(scheduler: str) -> Iterator[dict[str, str] | None]:
    """Run a scheduler; its commands' environment, or None where none is wanted."""
    if scheduler == "none":
        yield None
        return
    if scheduler == "slurm":
        from tests.clusters.slurm.cluster import Slurm as Cluster
    else:
        from tests.clusters.grid_engine.cluster import GridEngine as Cluster
    with tempfile.TemporaryDirectory(prefix="shardwise-") as folder, Cluster() as started:
        yield started.start(Path(folder)).env()


def run(
    folder: Path, scheduler: str, env: dict[str, str] | None, dispatch: str, shards: int
) -> list[float]:
    """Run a workflow of its own from its config to its sum.

    Returns
    -------
    list of float
        Shards per second from the start of the command to the end of the last shard, and between
        the ends of the first and the last; seconds until the first has ended, that one takes by
        itself, and from the last to the reduce.

    Raises
    ------
    RuntimeError
        Where it fails, or its sum is wrong.
    """
    workspace = Workspace.create(folder, env)
    # Small whole numbers: their sums are exact.
    stack = np.random.default_rng(0).integers(-9, 9, (shards, DIM, DIM)).astype("float64")
    np.save(workspace.root / "stack.npy", stack)
    workspace.configure(
        input="stack.npy", shards=shards, materialize=False, backend="numpy",
        dispatch="array" if dispatch == "tasks" else dispatch,
        array_tasks=TASKS if dispatch == "tasks" else "auto",
    )  # fmt: skip
    began = time.time()
    done = workspace.run(*QUICK[scheduler], profile=PROFILES[scheduler], timeout=LIMIT_SECONDS)
    if done.code:
        raise RuntimeError(" ".join(done.output.split())[-300:])
    if not np.array_equal(workspace.load("sum.npy"), (stack @ stack).sum(axis=0)):
        raise RuntimeError("wrong result")
    receipts = [harness.read_json(path) for path in workspace.file("products").rglob("*.json")]
    first, *_, last = sorted(receipt["finished"] for receipt in receipts)
    own = statistics.median(receipt["finished"] - receipt["started"] for receipt in receipts)
    reduce = harness.read_json(workspace.file("summary.json"))["started"]
    rates = shards / (last - began), (shards - 1) / (last - first)
    return [*rates, first - began, own, reduce - last]


def measure(options: argparse.Namespace, folder: Path) -> None:
    """One scheduler after the other; under each, all dispatches in turn."""
    columns = ["scheduler", "dispatch", "shards", "shards per second", "after the first"]
    columns += ["first shard, s", "of its own, s", "last shard to reduce, s"]
    table = harness.Table(columns)
    for scheduler in options.scheduler:
        # An array job without a scheduler has no meaning.
        skipped = ("array", "tasks") if scheduler == "none" else ()
        names = [name for name in options.dispatch if name not in skipped]
        found: dict[str, list[list[float]]] = {name: [] for name in names}
        shards = {n: options.shards_of_jobs if n == "jobs" else options.shards for n in names}
        with cluster(scheduler) as env:
            for turn in range(options.rounds):
                for name in names:
                    place = folder / f"{scheduler}-{name}-{turn}"
                    try:
                        found[name].append(run(place, scheduler, env, name, shards[name]))
                    except Exception as error:  # the next one may do better
                        table.note(f"{scheduler}, {name}: {harness.reason(error)}")
        for name, turns in found.items():
            if turns:
                row = np.median(turns, axis=0).tolist()
                table.row([scheduler, name, shards[name], *row])
    table.end()


def main() -> None:
    """Measure in a folder that is removed afterwards."""
    parser = harness.parser(__doc__)
    parser.add_argument("--scheduler", nargs="+", default=list(PROFILES), choices=list(PROFILES))
    parser.add_argument("--dispatch", nargs="+", default=DISPATCHES, choices=DISPATCHES)
    parser.add_argument("--shards", type=int, default=1000, help="under array, pool and mpi")
    parser.add_argument("--shards-of-jobs", type=int, default=100, help="under jobs")
    parser.add_argument("--rounds", type=int, default=1, help="of all, in turn; the median counts")
    harness.add_folder(parser)
    options = parser.parse_args()
    if options.tiny:
        options.shards, options.shards_of_jobs, options.rounds = 6, 2, 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no scheduler is left behind
    harness.say(f"Dispatch, {harness.machine()}")
    with harness.working_folder(options) as folder:
        measure(options, folder)


if __name__ == "__main__":
    main()
