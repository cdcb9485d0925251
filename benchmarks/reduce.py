"""The reduce beside a plain loop over the same files: seconds and memory of both, in turn.

The files are those of a real run on NumPy. A row is one MPI world, in which both take turns: one
round that is not counted, then ``--rounds`` that are, each beginning with the other one. The clock
runs from a barrier to the end on rank 0. Cold means that the kernel was told to drop the files from
the page cache. The plain loop maps the files, adds them in double precision as they are, unchecked,
and ends with one ``Reduce`` of buffers and ``np.save``. It runs on all ranks, and on one alone.
"""

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np

GIB = 1024**3
DTYPES = ("float16", "float32", "float64", "complex64")
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
WORLD_SECONDS = 900.0  # that one may take
SHARDS = 8  # of products; of sums as many as hold the bytes, if these are not too many
MOST_SUMS = 1024
TERMS = 2  # matrices of each sum
LOOP_DIM = 64  # below it one call adds all arrays of a file faster than a loop
PLAIN = "plain.npy"  # the plain loop's sum
TOLERANCE = 1e-10  # of the norm of the sum
HEADINGS = ["dtype", "d", "keep", "files", "ranks", "GB", "s", "plain loop s", "times it",
            "plain loop of one process s", "times that", "peak MiB of a rank"]  # fmt: skip


class Row(NamedTuple):
    """One row: a run, whether its files are cached, and how many ranks add them."""

    dtype: str
    dim: int
    keep: str
    place: str
    ranks: int

    @property
    def name(self) -> str:
        """What ``--only`` looks at."""
        return f"{self.dtype} d={self.dim} {self.keep} {self.place} ranks={self.ranks}"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """All rows that are asked for; those on the same files follow each other."""
    dims = (8, 72) if options.tiny else (8, 256, 4096)
    columns = DTYPES, dims, ("products", "sum"), ("cached", "cold"), options.ranks
    every = itertools.starmap(Row, itertools.product(*columns))
    return (row for row in every if re.search(options.only, row.name))


def make(dtype: str, dim: int, keep: str, folder: Path, gib: float) -> Any:
    """Compute all shards of a stack of normal numbers, so that the results have ``gib``."""
    from shardwise.multiply.job import run_shard
    from shardwise.plan import plan as plans
    from shardwise.records import ledger

    sums = keep == "sum"
    wide = np.result_type(dtype, "float64") if sums else np.dtype(dtype)
    count = max(4, int(gib * GIB) // (dim**2 * wide.itemsize))
    shards = min(count, MOST_SUMS if sums else SHARDS)
    shape = (shards * TERMS if sums else count, dim, dim)
    folder.mkdir()
    stack = np.lib.format.open_memmap(folder / "stack.npy", "w+", dtype, shape)
    rest = stack.reshape(-1)
    for piece in harness.pieces(dtype, stack.size):
        rest[: len(piece)], rest = piece, rest[len(piece) :]
    stack.flush()
    own = {"keep": keep, "shards": shards, "backend": "numpy"}
    plan = plans.load(harness.write_plan(folder / "results", folder / "stack.npy", **own))
    for shard in plan.shards:
        run_shard(plan, shard)
    ledger.write(plan)
    return plan


# What the ranks do.


def shardwise(comm: Any, plan: Any) -> None:
    """The reduce as a run has it, with its checks and its receipts."""
    from shardwise.reduce import job

    job.run(comm, plan.results.plan, ["sum"])


def plain_loop(comm: Any, plan: Any) -> None:
    """Each rank adds its part of the files; rank 0 saves the sum."""
    total = np.zeros(plan.problem.product_shape, plan.problem.sum_dtype)
    for arrays in part_of(comm, plan):
        if len(total) < LOOP_DIM:
            total += arrays.sum(axis=0, dtype=total.dtype)
            continue
        for array in arrays:
            total += array
    whole = np.empty_like(total) if comm.rank == 0 else None
    comm.Reduce(total, whole)
    if whole is not None:
        np.save(plan.results.root.with_name(PLAIN), whole)


def one_process(comm: Any, plan: Any) -> None:
    """The plain loop of one process; the other ranks sleep meanwhile."""
    from mpi4py import MPI

    if comm.rank == 0:
        plain_loop(MPI.COMM_SELF, plan)
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(1e-3)


def part_of(comm: Any, plan: Any) -> Iterator[np.ndarray]:
    """The arrays of a rank: a part of each file of products, or each so many-th file of sums."""
    products = plan.settings.keep == "products"
    part, parts = (comm.rank, comm.size) if products else (0, 1)
    for path in paths_of(plan) if products else paths_of(plan)[comm.rank :: comm.size]:
        arrays = np.load(path, mmap_mode="r")
        yield arrays[len(arrays) * part // parts : len(arrays) * (part + 1) // parts]


def paths_of(plan: Any) -> list[Path]:
    """The files that are added."""
    return [plan.results.product(row.name) for row in plan.shards.values()]


def check(plan: Any) -> None:
    """Refuse figures of a wrong sum."""
    paths = plan.results.statistic("sum"), plan.results.root.with_name(PLAIN)
    found, expected = (np.load(path, mmap_mode="r") for path in paths)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    if not error < TOLERANCE:
        raise ValueError(f"the sums differ by {error:.1e} of their norm")


def turn(comm: Any, add: Callable, plan: Any, cold: bool) -> list[float]:
    """Seconds of one reduce, and the MiB of the rank that takes most memory."""
    harness.drop(paths_of(plan) if cold and comm.rank == 0 else [])
    Path("/proc/self/clear_refs").write_text("5\n")  # the peak begins anew
    comm.Barrier()
    begin = time.perf_counter()
    add(comm, plan)
    seconds = time.perf_counter() - begin
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return [seconds, max(comm.allgather(int(peak[1]) / 1024))]


def rank(plan_file: Path, cold: bool, rounds: int) -> None:
    """Measure in this world; rank 0 prints seconds and MiB by peer and round."""
    from mpi4py import MPI
    from shardwise.plan import plan as plans

    comm, plan = MPI.COMM_WORLD, plans.load(plan_file)
    figures: dict[str, list[list[float]]] = {"shardwise": [], "plain_loop": [], "one_process": []}
    for number in range(rounds + 1):
        for name in harness.in_turn(figures, number):
            found = turn(comm, globals()[name], plan, cold)
            figures[name] += [found] if number else []
        if comm.rank == 0:
            check(plan)
    if comm.rank == 0:
        harness.say(json.dumps(figures))


# What the benchmark does.


def measure(row: Row, plan: Any, rounds: int) -> dict[str, np.ndarray]:
    """Figures ``(rounds, 2)`` of all, from a world of its own."""
    line = [MPIEXEC, "-n", row.ranks, sys.executable, "-m", "mpi4py", __file__, "--plan"]
    line += [plan.results.plan, "--rounds", rounds, *(["--cold"] if row.place == "cold" else [])]
    line = [str(word) for word in line]
    done = subprocess.run(line, stdout=subprocess.PIPE, timeout=WORLD_SECONDS, check=True)
    return {name: np.array(found) for name, found in json.loads(done.stdout).items()}


def cells(row: Row, plan: Any, figures: dict[str, np.ndarray]) -> list[object]:
    """A row of the table: medians, of ratios those within a round; the peak is the largest."""
    (ours, peak), (plain, _), (alone, _) = (found.T for found in figures.values())
    nbytes = sum(path.stat().st_size for path in paths_of(plan))
    medians = (float(np.median(of)) for of in (ours, plain, plain / ours, alone, alone / ours))
    return [*row, nbytes / harness.GB, *medians, float(peak.max())]


def run(options: argparse.Namespace, folder: Path) -> None:
    """Measure row by row."""
    harness.say(f"Reduce, {harness.machine()}, {harness.file_system(folder)}")
    table = harness.Table(HEADINGS)
    for files, group in itertools.groupby(rows(options), lambda row: row[:3]):
        plan = make(*files, folder / "run", options.gib)
        for row in group:
            try:
                figures = measure(row, plan, options.rounds)
            except subprocess.SubprocessError as error:
                table.note(f"{row.name}: {harness.reason(error)}")
                continue
            table.row(cells(row, plan, figures))
        shutil.rmtree(folder / "run", ignore_errors=True)
    table.note("peak: Python and its libraries are part of it, the compiler where it was needed")
    table.end()


def main() -> None:
    """Measure in a folder that is removed afterwards, or be one of the ranks."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--gib", type=float, default=2.0, help="GiB of the files of a row")
    parser.add_argument("--only", default="", help="regular expression: 'd=8 sum cold ranks=2'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="ranks of the rows")
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)  # of a rank
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        rank(options.plan, options.cold, options.rounds)
        return
    if options.tiny:
        options.gib, options.rounds, options.ranks = 2**-12, 1, [1, 2]
    with harness.working_folder(options) as folder:
        run(options, folder)


if __name__ == "__main__":
    main()
