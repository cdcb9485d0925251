"""The copy of a shard: the matrices of one row of the plan, in a separate file."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

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
    path, first = plan.results.shard(shard.input_name), shard.start * plan.problem.matrix_bytes
    journal = plan.results.starts(shard.input_name, "shard")
    # Only an earlier attempt can have left temporary files: else do not list the folder.
    sweep = note_start(journal) > 1
    stack = StackReader(plan.sources_of(shard.start, shard.stop), plan.problem.left, plan.dtype)
    files = OpenFiles(stack.inputs.compare)

    def copy_part(offset: int, buffer: np.ndarray) -> None:
        stack.read_into(files, buffer, first + offset)
        writer.write_at(offset, buffer)

    with commit(path, sweep=sweep) as file, stack.inputs.unchanged():
        shape = (len(shard.run), *plan.problem.left)
        writer = StackWriter(file, shape, np.dtype(plan.dtype), memory.SHARD_PIECES)
        writer.begin()
        # Two threads, which take parts in order, decode each chunk once.
        in_parts(shard.bytes, copy_part, 2 if plan.facts.decoded else memory.READERS)
        checksum = writer.hashed.hexdigest()
    receipt = {
        "shard": shard_id,
        "start": shard.start,
        "stop": shard.stop,
        "key": shard.input_key,
        "file": receipts.describe_file(path, writer, checksum),
        **receipts.describe_origin("shard", started),
    }
    receipts.write(plan.results.shard_receipt(shard.input_name), receipt)
    forget_start(journal)


def in_parts(
    nbytes: int, take: Callable[[int, np.ndarray], None], threads: int = memory.READERS
) -> None:
    """Have threads call ``take(offset, buffer)`` for each part of some bytes, in order.

    One thread can read a part while others hash theirs.
    """
    own = threading.local()

    def take_one(offset: int) -> None:
        if not hasattr(own, "buffer"):
            own.buffer = np.empty(min(pieces.PART_BYTES, nbytes), np.uint8)
        take(offset, own.buffer[: nbytes - offset])

    with ThreadPoolExecutor(threads, "parts") as pool:
        for _ in pool.map(take_one, range(0, nbytes, pieces.PART_BYTES)):
            pass


def existing_copy(plan: Plan, shard: Shard) -> str | None:
    """The checksum in the receipt of a shard's copy; None if this plan has no whole copy."""
    with suppress(IntegrityError):
        receipt = judge.check_copy(plan, shard.shard)
        if plan.results.shard(shard.input_name).exists():
            return receipt.file.checksum
    return None


def damaged(plan: Plan, shard: Shard) -> IntegrityError:
    """The error for a copy that is not what its receipt says, with the command that repairs it."""
    receipt = for_bash(plan.results.shard_receipt(shard.input_name))
    return IntegrityError(
        f"{plan.results.shard(shard.input_name)} is damaged: its checksum differs from its "
        f"receipt; rm -f {receipt}, then start the run again"
    )
