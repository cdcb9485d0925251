"""The reduce next to a plain loop over the same files: seconds and memory of both, in turn.

The files are those of a real run on NumPy. A row is one MPI world, in which all peers take turns:
one round that is not counted, then ``--rounds`` that are. The clock runs from a barrier to the end
on rank 0. Cold means that the kernel was told to drop the files from the page cache. The plain loop
maps the files, adds them unchecked in double precision, and ends with one ``Reduce`` of buffers and
``np.save``. It runs on all ranks, and on one alone. Peaks include Python.
"""

import argparse
import functools
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

DTYPES = ("float16", "float32", "float64", "complex64")
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
SHARDS = 8  # if products are kept; else as many sums as fill the bytes, up to MOST_SUMS
MOST_SUMS = 1024
TERMS = 2  # matrices of each sum
LOOP_DIM = 64  # below this dimension one call adds all arrays of a file faster than a loop
PLAIN = "plain.npy"  # the plain loop's sum
TOLERANCE = 1e-10  # of the norm of the sum


def make(dtype: str, dim: int, keep: str, folder: Path, gib: float) -> Any:
    """Compute all shards of a stack of normal numbers; their results take up to ``gib`` GiB."""
    from tests import factories

    sums = keep == "sum"
    wide = np.result_type(dtype, "float64") if sums else np.dtype(dtype)
    count = max(4, int(gib * harness.GIB) // (dim**2 * wide.itemsize))
    shards = min(count, MOST_SUMS if sums else SHARDS)
    stack = folder / "stack.npy"
    harness.write_stack(stack, dtype, (shards * TERMS if sums else count, dim, dim))
    return factories.listed(harness.plan(folder, stack, keep=keep, shards=shards))


def paths_of(plan: Any) -> list[Path]:
    """The files that are added."""
    return [plan.results.product(row.name) for row in plan.shards.values()]


def shardwise(comm: Any, plan: Any) -> None:
    """The reduce as a run does it, with its checks and receipts."""
    from shardwise.reduce import reducer

    reducer.run(comm, plan.results.plan, ["sum"])


def plain_loop(comm: Any, plan: Any) -> None:
    """Each of n ranks adds its part of each file of products, or every n-th sum; rank 0 saves."""
    total = np.zeros(plan.problem.product_shape, plan.problem.sum_dtype)
    products = plan.settings.keep == "products"
    rank, ranks = (comm.rank, comm.size) if products else (0, 1)
    for path in paths_of(plan) if products else paths_of(plan)[comm.rank :: comm.size]:
        arrays = np.load(path, mmap_mode="r")
        arrays = arrays[len(arrays) * rank // ranks : len(arrays) * (rank + 1) // ranks]
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
    """The plain loop on rank 0 alone; the other ranks sleep meanwhile."""
    from mpi4py import MPI

    if comm.rank == 0:
        plain_loop(MPI.COMM_SELF, plan)
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(1e-3)


def check(plan: Any) -> None:
    """Refuse the figures if the sums of both peers differ."""
    paths = plan.results.statistic("sum"), plan.results.root.with_name(PLAIN)
    found, expected = (np.load(path, mmap_mode="r") for path in paths)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    if not error < TOLERANCE:
        raise ValueError(f"the sums differ by {error:.1e} of their norm")


def turn(comm: Any, add: Callable[..., None], plan: Any, cold: bool) -> tuple[float, float]:
    """Seconds of one reduce, and the peak MiB of the rank that takes the most memory."""
    harness.drop(paths_of(plan) if cold and comm.rank == 0 else [])
    Path("/proc/self/clear_refs").write_text("5\n")  # resets the peak
    comm.Barrier()
    begin = time.perf_counter()
    add(comm, plan)
    seconds = time.perf_counter() - begin
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return seconds, max(comm.allgather(int(peak[1]) / 1024))


def rank(options: argparse.Namespace) -> None:
    """Measure in this world; rank 0 prints seconds and MiB by peer and round."""
    from mpi4py import MPI
    from shardwise.plan import plan as plan_file

    comm, plan = MPI.COMM_WORLD, plan_file.load(Path(options.plan))
    peers = (shardwise, plain_loop, one_process)
    calls = {add: functools.partial(turn, comm, add, plan, options.cold) for add in peers}
    figures = [harness.in_turn(calls, rounds) for rounds in (1, options.rounds)][1]
    if comm.rank == 0:
        check(plan)
        harness.say(json.dumps(list(figures.values())))


def measure(plan: Any, place: str, ranks: int, rounds: int) -> tuple[float, ...]:
    """Start an MPI world; return GB, medians of seconds and of ratios within a round, peak MiB."""
    line = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", __file__]
    line += ["--plan", str(plan.results.plan), "--rounds", str(rounds)]
    line += ["--cold"] if place == "cold" else []
    done = subprocess.run(line, stdout=subprocess.PIPE, timeout=900, check=True)
    (ours, peak), (plain, _), (alone, _) = (np.array(own).T for own in json.loads(done.stdout))
    medians = (float(np.median(of)) for of in (ours, plain, plain / ours, alone, alone / ours))
    nbytes = sum(path.stat().st_size for path in paths_of(plan))
    return nbytes / harness.GB, *medians, float(peak.max())


def main() -> None:
    """Measure row by row in a folder that is removed afterwards, or be one of the ranks."""
    tiny = {"gib": 2**-12, "rounds": 1, "ranks": [1, 2], "dims": [8, 72]}
    defaults = {"gib": 2.0, "rounds": 5, "ranks": [1, 2, 4], "dims": [8, 256, 4096], "only": ""}
    options = harness.options(__doc__, tiny, **defaults, plan="", cold=False)
    if options.plan:
        rank(options)
        return
    harness.say(f"Reduce, {harness.machine()}")
    harness.heading(
        "dtype", "d", "keep", "files", "ranks", "GB", "s", "plain loop s", "times it",
        "plain loop of one process s", "times that", "peak MiB of a rank",
    )  # fmt: skip
    worlds = list(itertools.product(("cached", "cold"), options.ranks))
    for files in itertools.product(DTYPES, options.dims, ("products", "sum")):
        rows = {"{} d={} {} {} ranks={}".format(*files, *world): world for world in worlds}
        chosen = [world for name, world in rows.items() if re.search(options.only, name)]
        with tempfile.TemporaryDirectory() as folder:
            plan = make(*files, Path(folder), options.gib) if chosen else None
            for world in chosen:
                harness.row(*files, *world, *measure(plan, *world, options.rounds))


if __name__ == "__main__":
    main()
