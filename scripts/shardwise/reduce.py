"""The reduce: every rank holds its part of the result and adds all products to it in order.

Ranks split the elements of the result, not the shards: each element is summed by one rank, over
all matrices in global order, so the bits do not depend on the number of ranks or shards.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import planfile, receipts, sizes
from shardwise.arrays import StackWriter, commit, file_checksum, read_header
from shardwise.bins import BinnedSum, rounded
from shardwise.errors import InputError, IntegrityError, ShardwiseError, TryAgain
from shardwise.ledger import Entry, read, remove_receipts
from shardwise.planfile import Plan
from shardwise.problem import Problem
from shardwise.sums import RunningSum

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0
_NAME_BYTES = 256  # more than any host name has


def check_ranks(comm: Any, ranks: int) -> None:
    """Refuse a communicator that is not of the size asked for.

    A launcher of another MPI starts many worlds of one rank each, without any error of its own.
    """
    if comm.size != ranks:
        raise InputError(
            f"reduce: asked for {ranks} ranks, but MPI has {comm.size}: the launcher does not fit "
            "the MPI that mpi4py loads; see the line 'mpi' of the profile"
        )


def run(comm: Any, plan_file: Path, statistics: list[str]) -> Plan:
    """Sum all products and commit the statistics, then ``summary.json``; the plan, in the end.

    Parameters
    ----------
    comm
        An MPI communicator; every rank calls this.
    statistics
        ``sum``, ``mean``, or both.

    Raises
    ------
    IntegrityError
        On every rank, where a shard is not what its receipt says.
    InputError
        On the root, where the sum overflows.
    """
    started = time.time()
    plan = _agree(comm, lambda: planfile.load(plan_file))
    entries = _agree(comm, lambda: read(plan) if comm.rank == 0 else None)
    entries = comm.bcast(entries)
    _agree(comm, lambda: _check_files(comm, plan, entries))
    part = _agree(comm, lambda: _sum_part(comm, plan, entries))
    total = _agree(comm, lambda: _gathered(comm, part, plan))
    nodes = _nodes(comm)
    _agree(comm, lambda: _commit(comm, plan, statistics, total, entries, nodes, started))
    return plan


def _agree(comm: Any, work: Any) -> Any:
    """Run ``work`` on every rank; if it fails on any, raise the lowest rank's error on all."""
    error, result = None, None
    try:
        result = work()
    except ShardwiseError as caught:
        error = caught
    except OSError as caught:
        error = TryAgain(f"{caught}; nothing was committed")
    errors = [e for e in comm.allgather(error) if e is not None]
    if errors:
        raise errors[0]
    return result


def _check_files(comm: Any, plan: Plan, entries: list[Entry]) -> None:
    """Compare this rank's share of the files with their checksums."""
    for entry in entries[comm.rank :: comm.size]:
        offset = read_header(entry.path).offset
        if file_checksum(entry.path, offset, entry.piece_bytes) != entry.checksum:
            raise IntegrityError(
                f"shard {entry.shard}: {entry.path} is damaged: its checksum differs from its "
                f"receipt; compute it again: {remove_receipts(plan, [entry.shard])}, then "
                "snakemake as before"
            )


def part_of(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """Elements ``low`` to ``high`` of a flat result of ``size`` that a rank holds."""
    return size * rank // ranks, size * (rank + 1) // ranks


def _sum_part(comm: Any, plan: Plan, entries: list[Entry]) -> np.ndarray:
    """The elements of the sum that this rank holds."""
    problem = plan.problem
    size = problem.product_shape[0] * problem.product_shape[1]
    part = part_of(size, comm.rank, comm.size)
    exact = sizes.exact_sum(problem, plan.settings["reproducible"])
    binned = plan.settings["keep"] == "sum" and exact
    add, total = (_add_planes if binned else _add_products)(problem, size, part)
    last = time.monotonic()
    for number, entry in enumerate(entries, 1):
        with np.errstate(all="ignore"):  # an overflow is found and named at the end
            add(entry)
        if comm.rank == 0 and time.monotonic() - last > _PROGRESS_SECONDS:
            log.info("reduce: %d of %d shards summed", number, len(entries))
            last = time.monotonic()
    return total()


def _add_products(problem: Problem, size: int, part: tuple[int, int]) -> tuple[Callable, Callable]:
    """How products are added one by one, and how their sum is read."""
    running = RunningSum((part[1] - part[0],), problem.sum_dtype)

    def add(entry: Entry) -> None:
        for block in _blocks(entry, size, *part):
            running.add(block)

    return add, running.total


def _add_planes(problem: Problem, size: int, part: tuple[int, int]) -> tuple[Callable, Callable]:
    """How the planes of partial sums are merged, and how their sum is read."""
    low, high = part
    binned = BinnedSum(np, (high - low,), problem.product_dtype)

    def add(entry: Entry) -> None:
        header = read_header(entry.path)
        planes = np.memmap(entry.path, header.dtype, "r", header.offset, header.shape)
        own = np.asarray(planes).reshape(len(planes), size, -1)[:, low:high]
        binned.merge(own.reshape(binned.planes().shape), entry.terms)

    return add, lambda: rounded(binned.planes(), problem.product_dtype)


def _blocks(entry: Entry, size: int, low: int, high: int) -> Any:
    """A rank's elements of a file, a bounded number of arrays at a time: ``(n, high - low)``."""
    header = read_header(entry.path)
    arrays = np.memmap(entry.path, header.dtype, "r", header.offset, (entry.rows, size))
    step = max(1, sizes.REDUCE_BLOCK_BYTES // max(1, (high - low) * header.dtype.itemsize))
    for first in range(0, entry.rows, step):
        yield np.ascontiguousarray(arrays[first : first + step, low:high])


def _gathered(comm: Any, own: np.ndarray, plan: Plan) -> np.ndarray | None:
    """The whole result on rank 0."""
    shape = plan.problem.product_shape
    size = shape[0] * shape[1]
    if comm.rank != 0:
        comm.Gatherv(own, None)
        return None
    whole = np.empty(size, own.dtype)
    bounds = [part_of(size, rank, comm.size) for rank in range(comm.size)]
    lengths, starts = [high - low for low, high in bounds], [low for low, _ in bounds]
    comm.Gatherv(own, [whole, (lengths, starts)])
    return whole.reshape(shape)


def _nodes(comm: Any) -> dict[str, int]:
    """How many ranks each node has, by name; empty on all ranks but 0."""
    own = np.zeros(_NAME_BYTES, np.uint8)
    name = receipts.node().encode()[:_NAME_BYTES]
    own[: len(name)] = np.frombuffer(name, np.uint8)
    names = np.empty((comm.size if comm.rank == 0 else 0, _NAME_BYTES), np.uint8)
    comm.Gather(own, names)
    return dict(Counter(row.tobytes().rstrip(b"\0").decode() for row in names))


def _commit(
    comm: Any,
    plan: Plan,
    statistics: list[str],
    total: Any,
    entries: list[Entry],
    nodes: dict[str, int],
    started: float,
) -> None:
    if comm.rank != 0:
        return
    if plan.settings["nonfinite"] == "error" and not np.isfinite(total).all():
        where = np.argwhere(~np.isfinite(total))[0].tolist()
        raise InputError(
            f"the sum overflows {total.dtype} at element {where}, or holds NaN or Inf of products "
            "that were computed under nonfinite: allow"
        )
    files = {}
    for name in statistics:
        result = total if name == "sum" else total / plan.problem.matrices
        files[name] = _commit_array(plan.results.statistic(name), result)
    summary = {
        "matrices": plan.problem.matrices,
        "shards": len(entries),
        "product": plan.problem.product,
        "keep": plan.settings["keep"],
        "proven": plan.settings["verify"] and plan.problem.result is None,
        "plan": plan.facts["digest"],
        "ranks": comm.size,
        "nodes": nodes,
        "files": files,
        **receipts.provenance("reduce", started, {"numpy": np.__version__, "mpi": _mpi_version()}),
    }
    receipts.write(plan.results.summary, summary)


def _commit_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    with commit(path) as file:
        writer = StackWriter(file, array.shape, array.dtype)
        writer.append(array)
        checksum = writer.checksum()
    return receipts.file_facts(path, array.shape, array.dtype.name, checksum, writer.piece_bytes)


def _mpi_version() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().split("\n")[0].split(",")[0].strip().rstrip("\0")
