"""A shard on disk: the matrices of one row of the plan as a file of their own."""

import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

from shardwise import disk, receipts, sizes
from shardwise.arrays import StackWriter, commit
from shardwise.lanes import HostLane
from shardwise.plan import Shard
from shardwise.planfile import Plan
from shardwise.sources import SPARE_BYTES, StackReader


def materialize(plan: Plan, shard_id: str, lane: Any = None, slabs: int = sizes.COPY_SLABS) -> None:
    """Copy one shard's matrices into ``shards/{shard}.npy`` and commit its receipt.

    Parameters
    ----------
    lane
        Whose slabs the bytes go through, where a task copies its own shard; None takes new memory.
    slabs
        How many of them, at most.

    Raises
    ------
    IntegrityError
        Where an input file is not the one that was planned for.
    TryAgain
        Where the disk has no room for the copy.
    """
    started = time.time()
    shard, problem = plan.shard(shard_id), plan.problem
    stack = StackReader(plan.sources, problem.left, plan.dtype)  # type: ignore[arg-type]
    shape = (shard.stop - shard.start, *problem.left)
    path = plan.results.shard(shard_id)
    attempt = receipts.note_start(plan.results.starts(shard_id, "shard"))
    # Only an earlier attempt can have left something: else the folder need not be listed.
    with commit(path, sweep=attempt > 1) as file:
        with StackWriter(file, shape, np.dtype(plan.dtype), sizes.SHARD_PIECES) as writer:
            _copy(stack, writer, shard, problem.matrix_bytes, lane or HostLane(), slabs)
        checksum = writer.checksum()
    receipt = {
        "shard": shard_id,
        "start": shard.start,
        "stop": shard.stop,
        "matrices": shard.matrices,
        "file": receipts.file_facts(
            path, shape, plan.dtype, checksum, writer.row_bytes, writer.piece_bytes
        ),
        **receipts.provenance("shard", started),
    }
    receipts.write(plan.results.shard_receipt(shard_id), receipt)


def _copy(
    stack: StackReader, writer: StackWriter, shard: Shard, matrix_bytes: int, lane: Any, slabs: int
) -> None:
    """Copy slabs, several at once: one is read while another is hashed and written."""
    buffers: SimpleQueue[np.ndarray] = SimpleQueue()
    size = min(sizes.SLAB_BYTES, shard.bytes)
    for _ in range(sizes.slabs(shard.bytes, slabs)):
        # A page before the bytes, so that they can be moved to where direct writes need them.
        buffers.put(lane.slab(disk.PAGE + size + SPARE_BYTES))

    def copy(offset: int) -> None:
        low = shard.start * matrix_bytes + offset
        buffer = buffers.get()
        try:
            high = low + min(size, shard.bytes - offset)
            views = stack.read_bytes(files, buffer[disk.PAGE :], low, high)
            writer.write_at(offset, [disk.gathered(buffer, views, offset)])
        finally:
            buffers.put(buffer)

    with disk.ExtentReader() as files, ThreadPoolExecutor(slabs) as pool:
        for _ in pool.map(copy, range(0, shard.bytes, size)):
            pass
    while not buffers.empty():
        lane.keep(buffers.get())
