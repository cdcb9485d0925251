"""The programs that ``reduce.py`` compares: one of them, in the ranks of an MPI world of its own.

Each first reduces a small plan of the same kind, so that libraries and compiled kernels are there.
The clock runs from a barrier after that to the end on rank 0, which prints a line of JSON.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np

Files = list[tuple[Path, int]]
"""Files of products, and how many arrays of each are added: the first ones."""


def files_of(plan: Any, most: int | None = None) -> Files:
    """The product files of a plan, or so much of each that they hold about ``most`` arrays.

    Parameters
    ----------
    plan
        Its files hold products, or the planes of one sum each. Of planes, the first files are left.
    most
        How many arrays are enough; None for all.
    """
    shards = list(plan.shards.values())
    if plan.settings.keep == "sum":
        return [(plan.results.product(shard.shard), 1) for shard in shards[:most]]
    each = plan.problem.matrices if most is None else max(1, most // len(shards))
    return [(plan.results.product(s.shard), min(each, s.stop - s.start)) for s in shards]


def arrays_in(plan: Any, path: Path) -> Any:
    """What is to be added of a file: its products, or the one sum as others keep it, mapped."""
    if plan.settings.keep == "sum":
        return np.load(plain_file(plan, path), mmap_mode="r")[np.newaxis]
    return np.asarray(np.load(path, mmap_mode="r"))


def plain_file(plan: Any, path: Path) -> Path:
    """Where the sum that a file holds lies in double precision: other programs have no planes."""
    return plan.results.root.with_name(f"{plan.results.root.name}-plain") / path.name


# One peer a function: called on every rank, it leaves the sum in a file.


def shardwise(comm: Any, plan: Any, most: int | None, output: Path) -> None:
    """The reduce as the workflow runs it, with its checks and its receipt."""
    from shardwise.reduce import job

    job.run(comm, plan.results.plan, ["sum"])
    if comm.rank == 0:
        plan.results.statistic("sum").replace(output)


def plain_loop(comm: Any, plan: Any, most: int | None, output: Path) -> None:
    """Each rank adds its part of each file, array by array; one ``Reduce`` of buffers."""
    total = np.zeros(plan.problem.product_shape, plan.problem.sum_dtype)
    for array in _part(comm, plan, most):
        total += array
    whole = np.empty_like(total) if comm.rank == 0 else None
    comm.Reduce(total, whole)
    if comm.rank == 0:
        np.save(output, whole)


def prerounded(comm: Any, plan: Any, most: int | None, output: Path) -> None:
    """The same bits for any ranks by NumPy: numbers cut where all ranks cut them.

    After J. Demmel and H. D. Nguyen, "Fast Reproducible Floating-Point Summation", ARITH 2013: one
    pass for the largest modulus, one for three slices of each number, whose sums do not round.
    """
    from mpi4py import MPI

    shape, dtype = plan.problem.product_shape, np.dtype(plan.problem.sum_dtype)
    largest = np.zeros((*shape, dtype.itemsize // 8))
    slices = np.zeros((3, *largest.shape))
    for array in _part(comm, plan, most):
        np.maximum(largest, np.abs(_reals(array)), out=largest)
    comm.Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
    bits = math.ceil(math.log2(plan.problem.matrices)) + 1
    magic = 3 * np.ldexp(1.0, np.frexp(largest)[1] + bits)
    for array in _part(comm, plan, most):
        rest = _reals(array)
        for level in range(len(slices)):
            unit = magic * 2.0 ** (level * (bits - 50))
            part = (rest + unit) - unit
            slices[level] += part
            rest = rest - part
    whole = np.empty_like(slices) if comm.rank == 0 else None
    comm.Reduce(slices, whole)
    if comm.rank == 0:
        np.save(output, whole[::-1].sum(axis=0).view(dtype)[..., 0])


def _part(comm: Any, plan: Any, most: int | None) -> Iterator[np.ndarray]:
    """The arrays of a rank: its part of each file; a file of one sum is the work of one rank."""
    shared = plan.settings.keep == "products"
    for number, (path, count) in enumerate(files_of(plan, most)):
        if not shared and number % comm.size != comm.rank:
            continue
        part, parts = (comm.rank, comm.size) if shared else (0, 1)
        yield from arrays_in(plan, path)[count * part // parts : count * (part + 1) // parts]


def _reals(array: np.ndarray) -> np.ndarray:
    """Float64, with real and imaginary part along a last axis."""
    wide = array.astype("complex128" if array.dtype.kind == "c" else "float64")
    return wide.view("float64").reshape(*array.shape, -1)


def lower_case(comm: Any, plan: Any, most: int | None, output: Path) -> None:
    """One ``reduce`` of a pickled array after the other; in each, a rank gives one of them."""
    total = np.zeros(plan.problem.product_shape, plan.problem.sum_dtype)
    nothing = np.zeros(plan.problem.product_shape, plan.problem.product_dtype)
    arrays = _own(plan, files_of(plan, most), comm.rank, comm.size)
    for own in arrays:
        found = comm.reduce(nothing if own is None else own)
        if comm.rank == 0:
            total += found
    if comm.rank == 0:
        np.save(output, total)


def _own(plan: Any, files: Files, rank: int, ranks: int) -> Iterator[np.ndarray | None]:
    """Each so many-th array of all files in a row; None where the last turn has none left."""
    everything = sum(count for _, count in files)
    at = 0
    for path, count in files:
        mine = range((rank - at) % ranks, count, ranks)
        if mine:
            arrays = arrays_in(plan, path)
            yield from (arrays[number] for number in mine)
        at += count
    if everything % ranks and rank >= everything % ranks:
        yield None


PEERS = {
    "shardwise": shardwise,
    "plain loop": plain_loop,
    "prerounded sum": prerounded,
    "lower-case reduce": lower_case,
}


def counted() -> dict[str, int]:
    """Bytes that this process has read so far: ``rchar`` by calls, ``read_bytes`` from a disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = dict(line.split(": ") for line in lines)
    return {key: int(found[key]) for key in ("rchar", "read_bytes")}


def memory(key: str) -> int:
    """Bytes of this process's memory: ``VmRSS`` now, ``VmHWM`` the most of it so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Let the peak of memory begin anew, where the kernel can."""
    try:
        Path("/proc/self/clear_refs").write_text("5\n")
    except OSError:
        return


def measured(comm: Any, peer: str, plan: Any, most: int | None, output: Path) -> dict[str, Any]:
    """Reduce once; seconds, the bytes that all ranks read, the memory of the largest rank."""
    forget_peak()
    held, before = memory("VmRSS"), counted()
    comm.Barrier()
    begin = time.perf_counter()
    PEERS[peer](comm, plan, most, output)
    seconds = time.perf_counter() - begin
    read = {key: number - before[key] for key, number in counted().items()}
    answers = comm.gather({**read, "held": held, "peak": memory("VmHWM")})
    if comm.rank != 0:
        return {}
    together = {key: sum(answer[key] for answer in answers) for key in read}
    most_of = {key: max(answer[key] for answer in answers) for key in ("held", "peak")}
    return {"seconds": seconds, **together, **most_of}


def main() -> None:
    """One world of one peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("plan", type=Path)
    parser.add_argument("warm", type=Path, help="plan of the small reduce before")
    parser.add_argument("output", type=Path, help="file for the sum")
    parser.add_argument("--most", type=int, help="arrays that are enough, of the slow peers")
    options = parser.parse_args()
    from mpi4py import MPI
    from shardwise.plan import plan as plans

    comm = MPI.COMM_WORLD
    PEERS[options.peer](comm, plans.load(options.warm), None, options.output)
    plan = plans.load(options.plan)
    if comm.rank == 0:
        options.output.unlink(missing_ok=True)
    answer = measured(comm, options.peer, plan, options.most, options.output)
    if comm.rank == 0:
        harness.say(json.dumps(answer))


if __name__ == "__main__":
    main()
