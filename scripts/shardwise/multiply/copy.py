"""The copy of a shard: the matrices of one row of the plan, in a separate file."""

import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from shardwise.errors import IntegrityError
from shardwise.files import pieces
from shardwise.files.commit import commit
from shardwise.files.extents import OpenFiles
from shardwise.files.npy import StackWriter
from shardwise.files.paths import for_bash
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.stack import StackReader
from shardwise.records import judge, receipts
from shardwise.records.receipts import ArrayFile
from shardwise.records.starts import forget_start, note_start


def materialize(plan: Plan, shard_id: str) -> None:
    """Copy one shard's matrices into ``shards/{shard}-{key}.npy`` and commit its receipt.

    Raises
    ------
    IntegrityError
        If an input file is not the one that was planned for.
    TryAgain
        If the disk has no room for the copy.
    """
    started, shard = time.time(), plan.shard(shard_id)
    journal = plan.results.starts(shard.input_name, "shard")
    attempt = note_start(journal)
    receipt = {
        "shard": shard_id,
        "start": shard.start,
        "stop": shard.stop,
        "key": shard.input_key,
        # Only an earlier attempt can have left temporary files: else do not list the folder.
        "file": _copy(plan, shard, sweep=attempt > 1),
        **receipts.describe_origin("shard", started),
    }
    receipts.write(plan.results.shard_receipt(shard.input_name), receipt)
    forget_start(journal)


def existing_copy(plan: Plan, shard: Shard) -> str | None:
    """The checksum in the receipt of a shard's copy; None if this plan has no whole copy."""
    try:
        receipt = judge.check_copy(plan, shard.shard)
    except IntegrityError:
        return None
    return receipt.file.checksum if plan.results.shard(shard.input_name).exists() else None


def how_to_repair(plan: Plan, shard: Shard) -> str:
    """The commands that make a damaged copy again."""
    receipt = for_bash(plan.results.shard_receipt(shard.input_name))
    return f"rm {receipt}, then start the run again"


def _copy(plan: Plan, shard: Shard, sweep: bool) -> ArrayFile:
    """Commit a copy; one thread reads a part while others hash and write theirs."""
    path, first = plan.results.shard(shard.input_name), shard.start * plan.problem.matrix_bytes
    shape = (shard.stop - shard.start, *plan.problem.left)
    stack = StackReader(plan.sources_of(shard.start, shard.stop), plan.problem.left, plan.dtype)
    files, buffers = OpenFiles(stack.inputs.compare), SimpleQueue[np.ndarray]()
    threads = 2 if plan.facts.decoded else memory.READERS  # in order: each chunk is decoded once
    for _ in range(threads):
        buffers.put(np.empty(min(pieces.PART_BYTES, shard.bytes), np.uint8))

    def copy_part(offset: int) -> None:
        buffer = buffers.get()
        try:
            part = buffer[: shard.bytes - offset]
            stack.read_into(files, part, first + offset)
            writer.write_at(offset, part)
        finally:
            buffers.put(buffer)

    with commit(path, sweep=sweep) as file, stack.inputs.unchanged():
        writer = StackWriter(file, shape, np.dtype(plan.dtype), memory.SHARD_PIECES)
        writer.begin()
        with ThreadPoolExecutor(threads, "copy") as pool:
            for _ in pool.map(copy_part, range(0, shard.bytes, pieces.PART_BYTES)):
                pass
        checksum = writer.checksum()
    return receipts.describe_file(path, writer, checksum)
