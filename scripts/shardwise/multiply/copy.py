"""A shard on disk: the matrices of one row of the plan as a file of their own."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError
from shardwise.files import direct, pieces
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.files.paths import for_bash
from shardwise.multiply.lanes import HostLane, Lane
from shardwise.numerics import reference as references
from shardwise.plan import memory
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.plan.stack import SPARE_BYTES, StackReader
from shardwise.records import judge, receipts, witness
from shardwise.records.receipts import ArrayFile
from shardwise.records.timeline import Stopwatch


def materialize(
    plan: Plan, shard_id: str, lane: Lane | None = None, slabs: int = memory.COPY_SLABS,
    watch: Stopwatch | None = None,
) -> None:  # fmt: skip
    """Copy one shard's matrices into ``shards/{shard}.npy`` and commit its receipt.

    The bytes go through so many slabs of a lane, or of new memory.

    Raises
    ------
    IntegrityError
        Where an input file is not the one that was planned for.
    TryAgain
        Where the disk has no room for the copy.
    """
    started, shard = time.time(), plan.shard(shard_id)
    if plan.facts.decoded:  # in order, so that each chunk is decoded once
        slabs = min(slabs, memory.FEWEST_SLABS)
    attempt = receipts.note_start(plan.results.starts(shard_id, "shard"))
    # The slower types are sampled by the task that multiplies: a copy is to run as fast as a disk.
    reference = reference_of(plan, shard) if plan.dtype in references.KEEPS_UP else None
    # Only an earlier attempt can have left something: else the folder need not be listed.
    sweep, watch = attempt > 1, watch or Stopwatch()
    file = _copy(plan, shard, lane or HostLane(), slabs, reference, watch, sweep)
    receipt = {
        "shard": shard_id,
        "start": shard.start,
        "stop": shard.stop,
        "matrices": shard.matrices,
        "file": file,
        "witness": _witness(plan, reference),
        **receipts.describe_origin("shard", started),
    }
    receipts.write(plan.results.shard_receipt(shard_id), receipt)


@dataclass(frozen=True)
class Copy:
    """What the receipt of a shard's copy says of its matrices."""

    checksum: str
    reference: np.ndarray | None  # the CPU's number of them all, where it was taken


def existing_copy(plan: Plan, shard: Shard) -> Copy | None:
    """What the receipt of a shard's copy says; None if this plan has no whole copy."""
    try:
        receipt = judge.check_copy(plan, shard.shard)
        reference = witness.read_reference(receipt, plan.problem, factors_digest(plan))
    except (IntegrityError, KeyError, TypeError, ValueError):
        return None
    if not plan.results.shard(shard.shard).exists():
        return None
    return Copy(receipt.file.checksum, reference)


def how_to_repair(plan: Plan, shard: Shard) -> str:
    """The command that has a damaged copy made again."""
    receipt = for_bash(plan.results.shard_receipt(shard.shard))
    return f"rm {receipt}, then snakemake as before"


def factors_digest(plan: Plan) -> str:
    """Changes with what the CPU's number of a shard depends on, beside the shard's matrices."""
    return plans.digest(
        [plan.problem.product, [vars(source) for source in plan.facts.right_sources]]
    )


def reference_of(plan: Plan, shard: Shard, every: int | None = None) -> references.Reference | None:
    """Who takes the CPU's own number of a shard's matrices, or of one in ``every``, in one pass.

    None if nothing is proven, or where each matrix has a B of its own: that is not read with A.
    """
    problem = plan.problem
    provable = plan.settings.verify and problem.result is None
    if not provable or (problem.right and not problem.shared_right):
        return None
    right = None
    if problem.right:
        right = _right_vector(plan.facts.right_sources, problem.right, plan.dtype)
    return references.Reference(problem, shard.stop - shard.start, every, right)


@lru_cache(maxsize=1)
def _right_vector(sources: tuple[Source, ...], shape: tuple[int, int], dtype: str) -> np.ndarray:
    """``B r`` of the one B that serves all; a process takes it once."""
    stack, vector = StackReader(sources, shape, dtype), references.RightVector(shape, dtype)
    total, step = stack.matrix_bytes, pieces.slab_bytes(np.dtype(dtype).itemsize)
    buffer = direct.aligned_empty(min(step, total) + SPARE_BYTES)
    with stack.inputs.unchanged(), direct.ExtentReader(opened=stack.inputs.compare) as files:
        for low in range(0, total, step):
            high = min(low + step, total)
            vector.update(low, stack.read_bytes(files, buffer, low, high))
    return vector.value()


def _witness(plan: Plan, reference: references.Reference | None) -> dict[str, Any] | None:
    """What the receipt of a copy says of its matrices; None if nothing can be said."""
    if reference is None:
        return None
    total = reference.total()
    if not np.isfinite(total).all():
        return None
    return {
        "reference": witness.number_to_json(total),
        "seed": references.SEED,
        "factors": factors_digest(plan),
    }


def _copy(
    plan: Plan, shard: Shard, lane: Lane, slabs: int, reference: references.Reference | None,
    watch: Stopwatch, sweep: bool,
) -> ArrayFile:  # fmt: skip
    """Commit a copy, made through ``slabs``: one is read while another is hashed and written."""
    path, first = plan.results.shard(shard.shard), shard.start * plan.problem.matrix_bytes
    shape = (shard.stop - shard.start, *plan.problem.left)
    stack = StackReader(plan.sources_of(shard.start, shard.stop), plan.problem.left, plan.dtype)
    size = min(pieces.slab_bytes(plan.problem.item), shard.bytes)
    buffers: SimpleQueue[np.ndarray] = SimpleQueue()
    for _ in range(memory.slabs(shard.bytes, slabs)):
        # A spare page lets the bytes move to where direct writes need them.
        buffers.put(lane.slab(direct.PAGE + size + SPARE_BYTES))

    def copy_slab(offset: int) -> None:
        low, nbytes, buffer = first + offset, min(size, shard.bytes - offset), buffers.get()
        room = buffer[direct.PAGE :]
        try:
            views = watch.timed("read", lambda: stack.read_bytes(files, room, low, low + nbytes))
            whole = direct.gathered(buffer, views, offset)
            watch.timed("write", lambda: writer.write_at(offset, [whole]))
            if reference is not None:
                watch.timed("read", lambda: reference.update(offset, [whole]))
        finally:
            buffers.put(buffer)

    with commit(path, sweep=sweep) as file:
        with (
            StackWriter(file, shape, np.dtype(plan.dtype), memory.SHARD_PIECES) as writer,
            stack.inputs.unchanged(),
            direct.ExtentReader(opened=stack.inputs.compare) as files,
            ThreadPoolExecutor(slabs) as pool,
        ):
            for _ in pool.map(copy_slab, range(0, shard.bytes, size)):
                pass
        checksum = writer.checksum()
    while not buffers.empty():
        lane.keep(buffers.get())
    rows = writer.row_bytes, writer.piece_bytes
    return receipts.describe_file(path, shape, plan.dtype, checksum, *rows)
