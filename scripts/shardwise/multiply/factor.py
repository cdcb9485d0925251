"""One factor of a shard's products: where its bytes are read, and what they come to."""

from typing import Any

import numpy as np

from shardwise.files.checksum import PieceChecksum
from shardwise.files.extents import Extent, OpenFiles
from shardwise.plan import memory
from shardwise.plan.stack import StackReader


class Factor:
    """The matrices ``run`` of a stack as one run of bytes.

    Attributes
    ----------
    hashed
        The checksum of what was read.
    digest
        Where a device adds to it.
    """

    def __init__(self, stack: StackReader, run: range, files: OpenFiles) -> None:
        self.stack, self.files = stack, files
        self._begin = run.start * stack.matrix_bytes
        self.hashed = PieceChecksum(len(run) * stack.matrix_bytes, *memory.SHARD_PIECES)
        self.digest: Any = None

    def extents(self, offset: int, nbytes: int) -> list[Extent] | None:
        """Where bytes from byte ``offset`` of the run on lie; None where they are converted."""
        begin = self._begin + offset
        return self.stack.extents(begin, begin + nbytes)

    def read(self, offset: int, view: np.ndarray) -> None:
        """Read bytes from byte ``offset`` of the run on, and hash them."""
        self.convert(offset, view)
        self.hashed.update(offset, [view])

    def convert(self, offset: int, view: np.ndarray) -> None:
        """Read bytes from byte ``offset`` of the run on, in whatever order they lie."""
        self.stack.read_into(self.files, view, self._begin + offset)
