"""A shard on disk: the matrices of one row of the plan as a file of their own."""

import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from shardwise import disk, receipts
from shardwise import plan as counts
from shardwise.arrays import StackWriter, commit
from shardwise.plan import Problem, Shard
from shardwise.planfile import Plan, load_sources
from shardwise.sources import StackReader


def materialize(plan: Plan, shard_id: str) -> None:
    """Copy one shard's matrices into ``shards/{shard}.npy`` and commit its receipt.

    Raises
    ------
    IntegrityError
        Where an input file is not the one that was planned for.
    TryAgain
        Where the disk has no room for the copy.
    """
    started = time.time()
    shard, problem = plan.shard(shard_id), plan.problem
    stack = StackReader(load_sources(plan), problem.left, plan.dtype)  # type: ignore[arg-type]
    shape = (shard.stop - shard.start, *problem.left)
    path, piece_bytes = plan.results.shard(shard_id), counts.piece_bytes(problem)
    with commit(path, sweep=True) as file:
        with StackWriter(file, shape, np.dtype(plan.dtype), piece_bytes) as writer:
            _copy(stack, writer, shard, problem)
        checksum = writer.checksum()
    receipt = {
        "shard": shard_id,
        "start": shard.start,
        "stop": shard.stop,
        "matrices": shard.matrices,
        "file": receipts.file_facts(path, shape, plan.dtype, checksum, piece_bytes),
        **receipts.provenance("shard", started, {"numpy": np.__version__}),
    }
    receipts.write(plan.results.shard_receipt(shard_id), receipt)


def _copy(stack: StackReader, writer: StackWriter, shard: Shard, problem: Problem) -> None:
    """Copy slabs, several at once: one is read while another is hashed and written."""
    step = min(counts.copy_matrices(problem), shard.stop - shard.start)
    packed = problem.matrix_bytes < disk.SHORT_BYTES  # such files are not read directly anyway
    slack = disk.SLACK_BYTES * (1 if packed else step)
    buffers: SimpleQueue[np.ndarray] = SimpleQueue()
    for _ in range(counts.COPY_SLABS):
        buffers.put(disk.aligned_empty(disk.PAGE + step * problem.matrix_bytes + slack))

    def copy(low: int) -> None:
        high, offset = min(low + step, shard.stop), (low - shard.start) * problem.matrix_bytes
        buffer = buffers.get()
        try:
            views = stack.read_into(reader, buffer[disk.PAGE :], low, high, packed)
            writer.write_at(offset, [disk.gathered(buffer, views, offset)])
        finally:
            buffers.put(buffer)

    with disk.ExtentReader() as reader, ThreadPoolExecutor(counts.COPY_SLABS) as pool:
        for _ in pool.map(copy, range(shard.start, shard.stop, step)):
            pass
