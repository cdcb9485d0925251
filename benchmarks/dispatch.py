"""Tiny shards under each dispatch, on a real Slurm, a real Grid Engine and with no scheduler.

Prints the table of docs/dispatch.md. Each row is a whole run by snakemake, with the profile as it
is shipped; schedulers run on this one machine, as in the tests, with pretended GPUs. All compute
with NumPy, and the sum has to be exact. Times are those of receipts and of summary.json.
"""

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

sys.path.insert(0, str(harness.REPO))

from tests.workspace import Workspace

PROFILES = {"none": "local", "slurm": "slurm", "uge": "uge"}
NAMES = {"none": "none", "slurm": "Slurm", "uge": "Grid Engine"}
DISPATCHES = ("jobs", "array", "tasks", "pool", "mpi")
TASKS = 4
"""Of an array whose tasks take shard after shard: the row `tasks`."""

NOWHERE = {("none", "array"), ("none", "tasks")}
"""What has no meaning: an array job without a scheduler."""

DIM = 8
LIMIT_SECONDS = 3600

# Snakemake looks at its jobs as often for each dispatch, and more often than it should on a real
# site, whose jobs last longer than these.
QUICK = {
    "none": (),
    "slurm": ("--slurm-init-seconds-before-status-checks", "2"),
    "uge": ("--seconds-between-status-checks", "1"),
}


@dataclass(frozen=True)
class Figures:
    """What one run took, in seconds."""

    shards: int
    first: float
    span: float
    own: float
    reduce: float

    @property
    def rate(self) -> float:
        """Shards per second, from the start of the command to the end of the last shard."""
        return self.shards / (self.first + self.span)

    @property
    def steady(self) -> float:
        """Shards per second, from the first one's end to the last one's."""
        return (self.shards - 1) / self.span


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


def stack(shards: int) -> np.ndarray:
    """A matrix a shard, of small whole numbers: their sums are exact."""
    return np.random.default_rng(0).integers(-9, 9, (shards, DIM, DIM)).astype("float64")


def run(
    folder: Path, scheduler: str, env: dict[str, str] | None, dispatch: str, shards: int
) -> Figures:
    """Run a workflow of its own from its config to its sum.

    Raises
    ------
    RuntimeError
        Where it fails, or its sum is wrong.
    """
    workspace = Workspace.create(folder, env)
    matrices = stack(shards)
    np.save(workspace.root / "stack.npy", matrices)
    workspace.configure(
        input="stack.npy", shards=shards, materialize=False, backend="numpy",
        dispatch="array" if dispatch == "tasks" else dispatch,
        array_tasks=TASKS if dispatch == "tasks" else "auto",
    )  # fmt: skip
    began = time.time()
    done = workspace.run(*QUICK[scheduler], profile=PROFILES[scheduler], timeout=LIMIT_SECONDS)
    if done.code:
        raise RuntimeError(" ".join(done.output.split())[-300:])
    if not np.array_equal(workspace.load("sum.npy"), (matrices @ matrices).sum(axis=0)):
        raise RuntimeError("wrong result")
    return read(workspace, began, shards)


HYPERQUEUE = """
import json, sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

command, shards, cores = json.load(sys.stdin)
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=cores))
    client, job = cluster.client(), Job()
    for shard in shards:
        job.program([*command, shard], stdout=None, stderr=None)
    client.wait_for_jobs([client.submit(job)])
"""
"""HyperQueue's server and one worker, which runs our stage as a command per shard."""


def run_hyperqueue(folder: Path, python: Path, shards: int) -> float:
    """Shards per second of HyperQueue, from its start to its end; RuntimeError where one fails."""
    workspace = Workspace.create(folder)
    np.save(workspace.root / "stack.npy", stack(shards))
    workspace.configure(input="stack.npy", shards=shards, materialize=False, backend="numpy")
    workspace.run("--until", "plan")
    plan = workspace.file("plan.tsv")
    ids = [line.split("\t")[0] for line in plan.read_text().splitlines()[1:]]
    script = workspace.root / "scripts" / "multiply.py"
    words = json.dumps([[sys.executable, str(script), f"--plan={plan}", "--shard"], ids, TASKS])
    began = time.time()
    subprocess.run([python, "-c", HYPERQUEUE], input=words, text=True, cwd=folder, check=True)
    if len(list(workspace.file("products").glob("*.json"))) != shards:
        raise RuntimeError("not all shards have products")
    return shards / (time.time() - began)


def read(workspace: Workspace, began: float, shards: int) -> Figures:
    """What receipts and the summary say of a run."""
    receipts = [harness.read_json(path) for path in workspace.file("products").glob("*.json")]
    ends = sorted(receipt["finished"] for receipt in receipts)
    own = statistics.median(receipt["finished"] - receipt["started"] for receipt in receipts)
    reduce = harness.read_json(workspace.file("summary.json"))["started"]
    return Figures(shards, ends[0] - began, ends[-1] - ends[0], own, reduce - ends[-1])


def arguments() -> argparse.ArgumentParser:
    """Which schedulers, dispatches and shards."""
    parser = harness.parser(__doc__)
    parser.set_defaults(minutes=60.0)
    parser.add_argument("--scheduler", nargs="+", default=list(PROFILES), choices=list(PROFILES))
    parser.add_argument("--dispatch", nargs="+", default=DISPATCHES, choices=DISPATCHES)
    parser.add_argument("--shards", type=int, default=1000, help="under array, pool and mpi")
    parser.add_argument("--shards-of-jobs", type=int, default=100, help="under jobs")
    parser.add_argument("--rounds", type=int, default=1, help="of all, in turn; the median counts")
    words = "a Python that has the package hyperqueue, to run it beside"
    parser.add_argument("--hyperqueue", type=Path, metavar="PYTHON", help=words)
    harness.add_folder(parser)
    return parser


def measure(options: argparse.Namespace, folder: Path) -> None:
    """One scheduler after the other; under each, all dispatches in turn."""
    columns = ["scheduler", "dispatch", "shards", "shards per second", "first shard after"]
    columns += ["then per shard", "of which its own work", "last shard to reduce"]
    table = harness.Table("dispatch", columns, options.json)
    budget = harness.Budget(options.minutes)
    for scheduler in options.scheduler:
        found: dict[str, list[Figures]] = {name: [] for name in options.dispatch}
        with cluster(scheduler) as env:
            for turn in range(options.rounds):
                for name, figures in found.items():
                    where = f"{scheduler}, {name}"
                    if (scheduler, name) in NOWHERE:
                        continue
                    if not budget.left:
                        table.note(f"{where}: skipped, out of time")
                        continue
                    shards = options.shards_of_jobs if name == "jobs" else options.shards
                    place = folder / f"{scheduler}-{name}-{turn}"
                    try:
                        figures.append(run(place, scheduler, env, name, shards))
                    except Exception as error:  # the next one may do better
                        table.note(f"{where}: {harness.reason(error)}")
        for name, figures in found.items():
            if figures:
                add_row(table, scheduler, name, figures)
    if options.hyperqueue:
        shards = options.shards_of_jobs
        rate = number(run_hyperqueue(folder / "hyperqueue", options.hyperqueue, shards))
        table.note(f"HyperQueue, {shards} shards, {TASKS} at once: {rate} shards per second")
    table.end()


def add_row(table: harness.Table, scheduler: str, dispatch: str, found: list[Figures]) -> None:
    """The medians over the rounds."""

    def middle(name: str) -> float:
        return statistics.median(getattr(figures, name) for figures in found)

    seconds = [middle("first"), 1 / middle("steady"), middle("own"), middle("reduce")]
    name = f"`array`, {TASKS} tasks" if dispatch == "tasks" else f"`{dispatch}`"
    cells: list[Any] = [NAMES[scheduler], name, found[0].shards, middle("rate")]
    cells += [f"{number(value)} s" for value in seconds]
    table.row(cells, {"rounds": [vars(figures) for figures in found]})


def number(value: float) -> str:
    """Two digits are all that such a figure is worth."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def main() -> None:
    """Measure in a folder that is removed afterwards."""
    options = arguments().parse_args()
    if options.tiny:
        options.shards, options.shards_of_jobs, options.rounds = 6, 2, 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no scheduler is left behind
    harness.say(f"Dispatch, {harness.machine()}")
    with harness.working_folder(options) as folder:
        measure(options, folder)


if __name__ == "__main__":
    main()
