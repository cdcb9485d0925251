"""Who reads what in the reduce: arithmetic on rows, stripes and ranks; and the reading itself.

A shard's file holds rows: its products, or the nodes of their sum. Long rows are cut into
*stripes*, each summed separately over all rows, so a rank holds sums as long as one stripe. A
*unit* is the rows of a shard that share a piece of the checksum; one rank reads it as a whole.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardwise.files.checksum import piece_digest
from shardwise.files.extents import OpenFile
from shardwise.files.npy import DATA_OFFSET

Span = tuple[int, int]  # first, and last exclusive

_FINENESS = 16  # borders of a rank's share move by up to 1/16 of it, so that they cut few nodes


class Rows(NamedTuple):
    """Rows ``first`` to ``last`` of a shard's file."""

    shard: int
    first: int
    last: int


class Layout:
    """How the rows of all shards are cut: a stripe is a piece of a row, and is read as a whole.

    ``rows`` are those in each shard's file, each of ``numbers`` numbers of ``item`` bytes. The
    checksums are cut as `files.pieces.checksum_pieces` says.
    """

    def __init__(
        self, rows: Sequence[int], numbers: int, item: int, row_bytes: int, piece_bytes: int
    ) -> None:
        self.numbers, self.item = numbers, item
        self.starts = list(accumulate(rows, initial=0))  # first row of each shard; then their total
        self.stripes = max(1, -(-numbers * item // piece_bytes))  # of a row
        self._unit_rows = max(1, row_bytes // max(1, numbers * item))
        self._width = piece_bytes // item if self.stripes > 1 else numbers

    def bounds(self, stripe: int) -> Span:
        """The numbers of a stripe."""
        return stripe * self._width, min((stripe + 1) * self._width, self.numbers)

    def share(self, part: int, parts: int) -> Span:
        """Rows, counted over all shards, of rank ``part``: whole units, an about equal share."""
        return self._border(part, parts), self._border(part + 1, parts)

    def _border(self, part: int, parts: int) -> int:
        total = self.starts[-1]
        if part in (0, parts):
            return total if part else 0
        grain = 1 << max(0, (total // (parts * _FINENESS)).bit_length() - 1)
        row = total * part // parts // grain * grain
        shard = bisect_right(self.starts, row) - 1
        begin, end = self.starts[shard], self.starts[shard + 1]
        return min(end, begin + -(-(row - begin) // self._unit_rows) * self._unit_rows)

    def batches(self, span: Span, stripe: int, most_bytes: int) -> Iterator[Rows]:
        """Cut rows, counted over all shards, into batches of a file: ``most_bytes``, or a unit."""
        low, high = self.bounds(stripe)
        unit = max(1, (high - low) * self.item) * self._unit_rows
        step = max(1, most_bytes // unit) * self._unit_rows
        at, last = span
        while at < last:
            shard = bisect_right(self.starts, at) - 1
            begin = self.starts[shard]
            stop = min(last, self.starts[shard + 1], at + step)
            yield Rows(shard, at - begin, stop - begin)
            at = stop

    def pieces(self, rows: Rows, stripe: int) -> Iterator[tuple[int, int, int]]:
        """Number, first byte and length of each checksum piece of some rows of a file."""
        low, high = self.bounds(stripe)
        for row in range(rows.first, rows.last, self._unit_rows):
            number = row // self._unit_rows * self.stripes + stripe
            count = min(self._unit_rows, rows.last - row)
            begin = (row * self.numbers + low) * self.item
            yield number, begin, count * (high - low) * self.item


class Scan:
    """Reads the batches of one stripe after the other, from files whose headers have been checked.

    A piece is copied out of the page cache and hashed while a core's cache holds it; mapping and
    unmapping each page would take longer. The kernel reads ahead by itself. Data that it is told to
    read (``WILLNEED``) it caches in small chunks, and copying out of these takes twice as long.

    ``digests``, uint8 ``(shards, 16)``, is the XOR of the digests of all pieces read of each file.
    """

    def __init__(self, layout: Layout, path_of: Callable[[int], Path], dtype: str) -> None:
        self._layout, self._path_of, self._dtype = layout, path_of, np.dtype(dtype)
        self.digests = np.zeros((len(layout.starts) - 1, 16), np.uint8)
        self._room = np.empty(0, np.uint8)

    def read(self, batches: Iterable[Rows], stripe: int) -> Iterator[tuple[Rows, np.ndarray]]:
        """Yield the batches in order; the numbers of one are valid until the next is asked for."""
        for shard, some in groupby(batches, lambda rows: rows.shard):
            with OpenFile(str(self._path_of(shard))) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for rows in some:
                    low, high = self._layout.bounds(stripe)
                    shape = rows.last - rows.first, high - low
                    room = self._room_for(shape[0] * shape[1] * self._dtype.itemsize)
                    at = digest = 0
                    for number, begin, nbytes in self._layout.pieces(rows, stripe):
                        piece = room[at : at + nbytes]
                        file.read_at(DATA_OFFSET + begin, piece)
                        digest ^= piece_digest(piece, number)
                        at += nbytes
                    self.digests[shard] ^= np.frombuffer(digest.to_bytes(16, "big"), np.uint8)
                    yield rows, room.view(self._dtype).reshape(shape)

    def _room_for(self, nbytes: int) -> np.ndarray:
        if self._room.nbytes < nbytes:
            # Begins at a page, as elements do in a file: reading to 16 bytes past one, where NumPy
            # allocates, takes four times as long on AMD Zen 3.
            wider = np.empty(nbytes + DATA_OFFSET, np.uint8)
            self._room = wider[-wider.ctypes.data % DATA_OFFSET :][:nbytes]
        return self._room[:nbytes]
