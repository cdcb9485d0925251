"""Reading for the reduce: rows of many files, each byte once.

A piece is copied out of the page cache and hashed while a core's cache holds it; mapping and
unmapping each page would take longer. The kernel reads ahead by itself. Data that it is told to
read (``WILLNEED``) it caches in small chunks, and copying out of these takes twice as long.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from itertools import groupby
from pathlib import Path

import numpy as np

from shardwise.files.checksum import piece_digest
from shardwise.files.extents import read_fully
from shardwise.files.npy import DATA_OFFSET
from shardwise.reduce.layout import Layout, Rows

Batch = tuple[Rows, np.ndarray]  # rows of a shard, and their numbers (rows, width)


class Scan:
    """Reads the batches of one stripe after the other, from files whose headers have been checked.

    ``digests``, uint8 ``(shards, 16)``, is the XOR of the digests of all pieces read of each file.
    """

    def __init__(self, layout: Layout, path_of: Callable[[int], Path], dtype: str) -> None:
        self._layout, self._path_of, self._dtype = layout, path_of, np.dtype(dtype)
        self.digests = np.zeros((len(layout.rows), 16), np.uint8)
        self._room = np.empty(0, np.uint8)

    def read(self, batches: Iterable[Rows], stripe: int) -> Iterator[Batch]:
        """Yield the batches in order; the numbers of one are valid until the next is asked for."""
        for shard, some in groupby(batches, lambda rows: rows.shard):
            with FileIO(self._path_of(shard)) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for rows in some:
                    yield rows, self._read(file, rows, stripe)

    def _read(self, file: FileIO, rows: Rows, stripe: int) -> np.ndarray:
        """Read some rows piece by piece, and hash each."""
        low, high = self._layout.bounds(stripe)
        shape = rows.last - rows.first, high - low
        total = shape[0] * shape[1] * self._dtype.itemsize
        if self._room.nbytes < total:
            # Begins at a page, as elements do in a file: reading to 16 bytes past one, where NumPy
            # allocates, takes four times as long on AMD Zen 3.
            wider = np.empty(total + DATA_OFFSET, np.uint8)
            self._room = wider[-wider.ctypes.data % DATA_OFFSET :][:total]
        room, at, digest = self._room[:total], 0, 0
        for number, begin, nbytes in self._layout.pieces(rows, stripe):
            piece = room[at : at + nbytes]
            read_fully(file.fileno(), DATA_OFFSET + begin, piece, file.name)
            digest ^= piece_digest(piece, number)
            at += nbytes
        self.digests[rows.shard] ^= np.frombuffer(digest.to_bytes(16, "big"), np.uint8)
        return room.view(self._dtype).reshape(shape)
