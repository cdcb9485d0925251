"""What tasks read, a factor of products, and inputs that they write: copies, synthetic stacks."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from shardwise.files import pieces
from shardwise.files.checksum import PieceChecksum, raw_bytes
from shardwise.files.commit import commit
from shardwise.files.extents import Extent, OpenFile, OpenFiles
from shardwise.files.npy import StackWriter
from shardwise.pace import Pace
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard, Source, between
from shardwise.plan.stack import InputFiles, StackReader, synthetic_matrix
from shardwise.records import receipts


class Factor:
    """One factor of a shard's products: the matrices ``run`` of a stack as one run of bytes."""

    def __init__(self, stack: StackReader, run: range, files: OpenFiles) -> None:
        self.files, self._stack, self._begin = files, stack, run.start * stack.matrix_bytes
        self.hashed = PieceChecksum(len(run) * stack.matrix_bytes, *memory.SHARD_PIECES)
        self.digest: Any = None  # by which a device adds to `hashed`

    def extents(self, offset: int, nbytes: int) -> list[Extent] | None:
        """Where the bytes from ``offset`` of the run on lie; None if they have to be converted."""
        begin = self._begin + offset
        return self._stack.extents(begin, begin + nbytes)

    def read(self, offset: int, view: np.ndarray) -> None:
        """Read bytes from byte ``offset`` of the run on, and hash them."""
        self.convert(offset, view)
        self.hashed.update(offset, view)

    def convert(self, offset: int, view: np.ndarray) -> None:
        """The same without hashing; bytes that lie in another order are converted."""
        self._stack.read_into(self.files, view, self._begin + offset)


def factors_of(
    plan: Plan, shard: Shard, inputs: InputFiles, copied: bool = False,
    opener: Callable[[str], Any] = OpenFile,
) -> list[Factor]:  # fmt: skip
    """A of a shard, from its copy or from the input, and B: its own, or the one that serves all."""
    files = OpenFiles(inputs.compare, opener)
    problem, sources = plan.problem, between(plan.sources, shard.start, shard.stop)
    if copied:
        path = str(plan.results.shard(shard.input_name))
        sources = [Source(path, shard.start, len(shard.run), "")]
    stack = StackReader(sources, problem.left, problem.dtype, inputs)
    factors = [Factor(stack, shard.run, files)]
    if problem.right:
        stack = StackReader(plan.facts.right_sources, problem.right, problem.dtype, inputs)
        run = range(1) if problem.shared_right else shard.run
        factors.append(Factor(stack, run, files))
    return factors


def materialize(plan: Plan, shard_id: str) -> str:
    """Copy one shard's matrices into ``shards/{shard}-{key}.npy``; return their checksum.

    IntegrityError if an input file is not the planned one, TryAgain if the disk has no room.
    """
    started, shard, inputs = time.time(), plan.shard(shard_id), InputFiles()
    path = plan.results.shard(shard.input_name)
    factor = factors_of(plan, shard, inputs)[0]

    pace = Pace(f"copy of shard {shard_id}", shard.bytes)

    def copy_part(offset: int, buffer: np.ndarray) -> None:
        factor.convert(offset, buffer)
        writer.write_at(offset, buffer)
        pace.add(len(buffer))

    with commit(path, sweep=True) as file, inputs.unchanged():
        shape = (len(shard.run), *plan.problem.left)
        writer = StackWriter(file, shape, np.dtype(plan.problem.dtype), memory.SHARD_PIECES)
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
    return checksum


def synthesize(plan: Plan) -> None:
    """Write ``input.npy`` and its receipt: each matrix depends on its index and the seed alone."""
    started, path = time.time(), plan.results.synthetic
    wanted, receipt = plan.facts.synthetic, plan.synthetic_receipt
    assert wanted  # callers check that the plan asks for a synthetic stack
    assert receipt
    count, dim, dtype = wanted["matrices"], wanted["dim"], np.dtype(wanted["dtype"])
    for other in plan.results.root.glob(f"input-{'[0-9a-f]' * 12}.json"):
        other.unlink()  # the stack that it vouches for is replaced
    with commit(path, sweep=True, receipt=receipt) as file:
        writer = StackWriter(file, (count, dim, dim), dtype)
        writer.begin()
        pace = Pace("synthetic stack", count)
        for i in range(count):
            raw = raw_bytes(synthetic_matrix(wanted["seed"], i, dim, dtype))
            writer.write_at(i * len(raw), raw)
            pace.add(1)
        checksum = writer.hashed.hexdigest()
    said = {"synthetic": wanted, "file": receipts.describe_file(path, writer, checksum)}
    receipts.write(receipt, said | receipts.describe_origin("synthesize", started))


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
