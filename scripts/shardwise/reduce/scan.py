"""Reading for the reduce: rows of many files, one batch ahead of who adds them, each byte once.

The checksum is formed in the pass that reads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from shardwise.errors import IntegrityError
from shardwise.files.checksum import piece_digest
from shardwise.files.npy import DATA_OFFSET
from shardwise.reduce.layout import Layout, Rows

_AHEAD = 2  # batches that are read while one is added

Batch = tuple[list[Rows], np.ndarray]
"""Rows of shards, and their numbers ``(rows, width)``."""


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
    nbytes
        How many bytes were read.
    """

    def __init__(self, layout: Layout, path_of: Callable[[int], Path], dtype: str) -> None:
        self._layout, self._path_of, self._dtype = layout, path_of, np.dtype(dtype)
        self.digests, self.nbytes = np.zeros((len(layout.rows), 16), np.uint8), 0
        self._pool = ThreadPoolExecutor(1, "scan")
        self._spare: list[np.ndarray] = []
        self._file: tuple[int, int] = (-1, -1)  # the shard whose file is open, and its descriptor

    def close(self) -> None:
        """End the thread, and close its file."""
        self._pool.shutdown(cancel_futures=True)
        self._open(-1)

    def read(self, batches: Iterable[list[Rows]], stripe: int) -> Iterator[Batch]:
        """The batches in order; the numbers of each hold until the next is asked for."""
        ahead: deque[Future[tuple[list[Rows], np.ndarray, np.ndarray]]] = deque()
        coming = iter(batches)
        while True:
            while len(ahead) < _AHEAD and (batch := next(coming, None)):
                ahead.append(self._pool.submit(self._read, batch, stripe))
            if not ahead:
                return
            rows, buffer, numbers = ahead.popleft().result()
            yield rows, numbers
            self.nbytes += numbers.nbytes
            self._spare.append(buffer)

    def _read(self, batch: list[Rows], stripe: int) -> tuple[list[Rows], np.ndarray, np.ndarray]:
        low, high = self._layout.bounds(stripe)
        row_bytes = (high - low) * self._dtype.itemsize
        count = sum(rows.last - rows.first for rows in batch)
        buffer = self._spare.pop() if self._spare else np.empty(0, np.uint8)
        if buffer.nbytes < count * row_bytes:
            buffer = np.empty(count * row_bytes, np.uint8)
        at = 0
        for rows in batch:
            part = buffer[at : at + (rows.last - rows.first) * row_bytes]
            self._fill(rows, low, stripe, part)
            at += part.nbytes
        return batch, buffer, buffer[:at].view(self._dtype).reshape(count, high - low)

    def _fill(self, rows: Rows, low: int, stripe: int, part: np.ndarray) -> None:
        """Read rows of one file piece by piece, each hashed while it is in a near cache."""
        layout, digest = self._layout, 0
        file = self._open(rows.shard)
        step = 1 if layout.stripes > 1 else layout.unit_rows
        each = part.nbytes // (rows.last - rows.first)
        for row in range(rows.first, rows.last, step):
            begin = (row - rows.first) * each
            piece = memoryview(part)[begin : begin + step * each]
            offset = DATA_OFFSET + (row * layout.numbers + low) * layout.item
            if not _read_fully(file, piece, offset):
                raise IntegrityError(
                    f"{self._path_of(rows.shard)} became shorter while it was read"
                )
            digest ^= piece_digest(piece, layout.piece(row, stripe))
        self.digests[rows.shard] ^= np.frombuffer(digest.to_bytes(16, "big"), np.uint8)

    def _open(self, shard: int) -> int:
        opened, file = self._file
        if opened != shard:
            if opened >= 0:
                os.close(file)
            self._file = -1, -1
            if shard >= 0:
                self._file = shard, os.open(self._path_of(shard), os.O_RDONLY)
        return self._file[1]


def _read_fully(file: int, view: memoryview, offset: int) -> bool:
    """Fill a view from byte ``offset`` of a file on; False where that ends before."""
    while view:
        got = os.preadv(file, [view], offset)
        if not got:
            return False
        view, offset = view[got:], offset + got
    return True
