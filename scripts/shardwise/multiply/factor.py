"""One factor of a shard's products: where its bytes are read from, and their checksum."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardwise.files.checksum import PieceChecksum
from shardwise.files.extents import Extent, OpenFiles
from shardwise.plan import memory
from shardwise.plan.stack import StackReader


class Factor:
    """The matrices ``run`` of a stack as one run of bytes.

    ``left_out`` is a mask of matrices that are not read; with a mask, nothing is hashed.
    """

    def __init__(
        self, stack: StackReader, run: range, files: OpenFiles, left_out: np.ndarray | None = None
    ) -> None:
        self.stack, self.files, self._left_out = stack, files, left_out
        self._begin = run.start * stack.matrix_bytes
        self.hashed = PieceChecksum(len(run) * stack.matrix_bytes, *memory.SHARD_PIECES)
        self.digest: Any = None  # by which a device adds to `hashed`

    @property
    def is_whole(self) -> bool:
        """Whether all matrices are read, and hashed."""
        return self._left_out is None

    def checksum(self) -> str | None:
        """The checksum of all matrices; None if some are not read."""
        return self.hashed.hexdigest() if self.is_whole else None

    def wanted(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The runs of matrices to read between ``first`` and ``last``, counted within ``run``."""
        if self._left_out is None:
            yield first, last
            return
        ends = np.flatnonzero(np.diff(self._left_out[first:last], prepend=True, append=True))
        yield from ((first + low, first + high) for low, high in ends.reshape(-1, 2).tolist())

    def extents(self, offset: int, nbytes: int) -> list[Extent] | None:
        """Where the bytes from ``offset`` of the run on lie; None if they have to be converted."""
        begin = self._begin + offset
        return self.stack.extents(begin, begin + nbytes)

    def read(self, offset: int, view: np.ndarray) -> None:
        """Read bytes from byte ``offset`` of the run on, and hash them."""
        self.convert(offset, view)
        if self.is_whole:
            self.hashed.update(offset, view)

    def convert(self, offset: int, view: np.ndarray) -> None:
        """The same without hashing; bytes that lie in another order are converted."""
        self.stack.read_into(self.files, view, self._begin + offset)
