"""A and B, read again where the plan says they lie, to compare them with what the receipts say."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from shardwise.files import direct, pieces
from shardwise.files.checksum import PieceChecksum
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.plan.stack import SPARE_BYTES, StackReader
from shardwise.records.receipts import ProductReceipt

_BY_CONTENT = "by content"
"""Stands for the identity of a file that may have been copied or touched since it was planned."""


class Factor:
    """One factor of a plan's products, ``input`` or ``right``; ``count`` is told of bytes read."""

    def __init__(
        self, plan: Plan, name: str, sources: Sequence[Source], count: Callable[[int], object]
    ) -> None:
        problem = plan.problem
        self.name, self.sources, self._count = name, sources, count
        self._shared = name == "right" and problem.shared_right
        shape = problem.left if name == "input" else problem.right
        self._nbytes = problem.matrix_bytes if name == "input" else problem.right_bytes
        files = [replace(source, identity=_BY_CONTENT) for source in sources]
        self._stack = StackReader(files, shape, plan.dtype)  # type: ignore[arg-type]
        self._once, self._known = threading.Lock(), ""

    def expected(self, receipt: ProductReceipt | None) -> str | None:
        """The checksum that a receipt has of its shard's part; None where it has none."""
        if receipt is None:
            return None
        return receipt.input_checksum if self.name == "input" else receipt.right_checksum

    def checksum(self, row: Shard) -> str:
        """The checksum of a shard's part; a B that serves all shards is read once.

        Raises InputError, IntegrityError or OSError where it cannot be read.
        """
        if not self._shared:
            return self._read(row.start * self._nbytes, row.stop * self._nbytes)
        with self._once:
            self._known = self._known or self._read(0, self._nbytes)
        return self._known

    def files(self, row: Shard) -> list[str]:
        """The files that hold a shard's part."""
        start, stop = (0, 1) if self._shared else (row.start, row.stop)
        return [s.path for s in self.sources if s.first < stop and start < s.first + s.count]

    def _read(self, low: int, high: int) -> str:
        checksum = PieceChecksum(high - low, *memory.SHARD_PIECES)
        buffer = direct.aligned_empty(min(pieces.SLAB_BYTES, high - low) + SPARE_BYTES)
        with direct.ExtentReader() as files:
            for start in range(low, high, pieces.SLAB_BYTES):
                stop = min(start + pieces.SLAB_BYTES, high)
                self._stack.read_bytes(files, buffer, start, stop, checksum.append)
                self._count(stop - start)
        return checksum.hexdigest()
