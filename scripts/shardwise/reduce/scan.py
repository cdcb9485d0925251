"""Reading for the reduce: rows of many files, each byte once.

A piece is copied out of the page cache and hashed while a core's cache holds it. To map the files
would take as long, as each page is entered and removed, and to leave the numbers in memory.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path

import numpy as np

from shardwise.files.checksum import _read_fully, piece_digest
from shardwise.files.npy import DATA_OFFSET
from shardwise.reduce.layout import Layout, Rows

_AHEAD = 3  # batches that the system reads while one is added

Batch = tuple[Rows, np.ndarray]  # rows of a shard, and their numbers (rows, width)


class Scan:
    """Reads the batches of one stripe after the other.

    Parameters
    ----------
    path_of
        The file of a shard, by its place in the plan. Its header and size have been checked.
    dtype
        Of the numbers in all files.

    Attributes
    ----------
    digests
        What the pieces that were read come to, of each shard: uint8 ``(shards, 16)``.
    """

    def __init__(self, layout: Layout, path_of: Callable[[int], Path], dtype: str) -> None:
        self._layout, self._path_of, self._dtype = layout, path_of, np.dtype(dtype)
        self.digests = np.zeros((len(layout.rows), 16), np.uint8)
        self._files: dict[int, FileIO] = {}
        self._room = np.empty(0, np.uint8)

    def read(self, batches: Iterable[Rows], stripe: int) -> Iterator[Batch]:
        """The batches in order; the numbers of one are there until the next is asked for."""
        coming: deque[Rows] = deque()
        for rows in batches:
            self._expect(rows, stripe)
            coming.append(rows)
            if len(coming) > _AHEAD:
                yield self._read(coming.popleft(), stripe)
        yield from (self._read(rows, stripe) for rows in coming)

    def close(self, before: int | None = None) -> None:
        """Close the files, or those of the shards before one."""
        for shard in [one for one in self._files if before is None or one < before]:
            self._files.pop(shard).close()

    def _file(self, shard: int) -> FileIO:
        if shard not in self._files:
            self._files[shard] = FileIO(self._path_of(shard))
        return self._files[shard]

    def _expect(self, rows: Rows, stripe: int) -> None:
        """Have the system begin to read what it does not hold: to ask in vain takes long, too."""
        file, first = self._file(rows.shard).fileno(), bytearray(1)
        for _, begin, nbytes in self._layout.pieces(rows, stripe):
            try:
                os.preadv(file, [first], DATA_OFFSET + begin, os.RWF_NOWAIT)
            except OSError:
                os.posix_fadvise(file, DATA_OFFSET + begin, nbytes, os.POSIX_FADV_WILLNEED)

    def _read(self, rows: Rows, stripe: int) -> Batch:
        """Read some rows piece by piece, and hash each."""
        self.close(before=rows.shard)
        file = self._file(rows.shard)
        low, high = self._layout.bounds(stripe)
        shape = rows.last - rows.first, high - low
        room, at, digest = self._reserve(shape[0] * shape[1] * self._dtype.itemsize), 0, 0
        for number, begin, nbytes in self._layout.pieces(rows, stripe):
            piece = room[at : at + nbytes]
            file.seek(DATA_OFFSET + begin)
            _read_fully(file, piece, file.name)
            digest ^= piece_digest(piece, number)
            at += nbytes
        self.digests[rows.shard] ^= np.frombuffer(digest.to_bytes(16, "big"), np.uint8)
        return rows, room.view(self._dtype).reshape(shape)

    def _reserve(self, nbytes: int) -> np.ndarray:
        """So many bytes of the same memory each time; it begins at a page, as the elements do.

        NumPy's begins 16 bytes further. To read to there from the page cache takes four times as
        long on AMD's Zen 3, whose copies are slow to 1 to 31 bytes further into a page.
        """
        if self._room.nbytes < nbytes:
            room = np.empty(nbytes + DATA_OFFSET, np.uint8)
            self._room = room[-room.ctypes.data % DATA_OFFSET :][:nbytes]
        return self._room[:nbytes]
