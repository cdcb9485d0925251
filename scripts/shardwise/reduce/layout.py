"""Who reads what in the reduce: arithmetic on rows, stripes and ranks; and the reading itself.

A shard's file holds rows: its products, or the nodes of their sum. Long rows are cut into
*stripes*, each summed separately over all rows, so a rank holds sums as long as one stripe. A
*unit* is the rows of a shard that share a piece of the checksum; one rank reads it as a whole.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from shardwise.files.checksum import PieceChecksum, raw_bytes
from shardwise.files.extents import OpenFile
from shardwise.files.npy import DATA_OFFSET
from shardwise.files.pieces import checksum_pieces
from shardwise.plan import memory

Span = tuple[int, int]  # first, and last exclusive

_FINENESS = 16  # borders of a rank's share move by up to 1/16 of it, so that they cut few nodes


class Scan:
    """Reads the rows of all shards, one stripe at a time, from files with checked headers.

    ``rows`` are those in each shard's file, each of ``numbers`` numbers. A piece is copied out of
    the page cache and hashed while a core's cache holds it; mapping and unmapping each page would
    take longer. The kernel reads ahead by itself. Data that it is told to read (``WILLNEED``) it
    caches in small chunks, and copying out of these takes twice as long.

    ``digests``, uint8 ``(shards, 16)``, is the XOR of the digests of all pieces read of each file.
    """

    def __init__(
        self, rows: Sequence[int], numbers: int, dtype: str, path_of: Callable[[int], Path]
    ) -> None:
        self._numbers, self._dtype, self._path_of = numbers, np.dtype(dtype), path_of
        self._row_bytes, item = numbers * self._dtype.itemsize, self._dtype.itemsize
        self._cut = unit, piece = checksum_pieces(self._row_bytes, item)
        self._starts = list(accumulate(rows, initial=0))  # first row of each shard; then the total
        self.stripes = -(-self._row_bytes // piece)  # of a row
        self._unit_rows, self._width = unit // self._row_bytes, min(numbers, piece // item)
        self.digests = np.zeros((len(rows), 16), np.uint8)
        # A batch begins at a page, as elements do in a file: reading to 16 bytes past one, where
        # NumPy allocates, takes four times as long on AMD Zen 3.
        units = max(1, memory.REDUCE_BATCH_BYTES // piece)
        room = np.empty(units * piece + DATA_OFFSET, np.uint8)
        self._batch = room[-room.ctypes.data % DATA_OFFSET :][: units * piece].view(self._dtype)
        self._batch_rows = units * self._unit_rows

    def bounds(self, stripe: int) -> Span:
        """The numbers of a stripe."""
        return stripe * self._width, min((stripe + 1) * self._width, self._numbers)

    def share(self, part: int, parts: int) -> Span:
        """Rows, counted over all shards, of rank ``part``: whole units, an about equal share."""
        return self._border(part, parts), self._border(part + 1, parts)

    def _border(self, part: int, parts: int) -> int:
        total = self._starts[-1]
        if part in (0, parts):
            return total if part else 0
        grain = 1 << max(0, (total // (parts * _FINENESS)).bit_length() - 1)
        row = total * part // parts // grain * grain
        shard = bisect_right(self._starts, row) - 1
        begin, end = self._starts[shard], self._starts[shard + 1]
        return min(end, begin + -(-(row - begin) // self._unit_rows) * self._unit_rows)

    def read(self, span: Span, stripe: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield the rows of a span in batches: the shard, the first row in its file, the numbers.

        These are valid until the next batch is asked for.
        """
        low, high = self.bounds(stripe)
        at, last = span
        while at < last:
            shard = bisect_right(self._starts, at) - 1
            begin, end = self._starts[shard], self._starts[shard + 1]
            stop = min(last, end) - begin
            pieces = PieceChecksum((end - begin) * self._row_bytes, *self._cut)
            with OpenFile(str(self._path_of(shard))) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for first in range(at - begin, stop, self._batch_rows):
                    shape = min(self._batch_rows, stop - first), high - low
                    batch = self._batch[: math.prod(shape)].reshape(shape)
                    self._fill(batch, file, first, low, pieces)
                    yield shard, first, batch
            self.digests[shard] ^= pieces.digest
            at = begin + stop

    def _fill(
        self, batch: np.ndarray, file: OpenFile, first: int, low: int, pieces: PieceChecksum
    ) -> None:
        """Read the rows from ``first`` on of a file, of each the numbers from ``low`` on."""
        for row in range(0, len(batch), self._unit_rows):
            piece = raw_bytes(batch[row : row + self._unit_rows])
            offset = (first + row) * self._row_bytes + low * self._dtype.itemsize
            file.read_at(DATA_OFFSET + offset, piece)
            pieces.update(offset, piece)
