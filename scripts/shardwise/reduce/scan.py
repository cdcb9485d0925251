"""Reading for the reduce: rows of many files, some ahead of who adds them, each byte once.

Files are mapped: what the page cache holds is added where it lies, as a copy would take longer than
the sum. The checksum is formed when the pages come.
"""

import ctypes
import errno
import mmap
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

_AHEAD = 3  # batches that are read while one is added
_POPULATE_READ = 22  # of Linux 5.14 on; Python has no name for it

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
        self._pool = ThreadPoolExecutor(1, "scan")
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise  # Python's own keeps its lock
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)

    def read(self, batches: Iterable[Rows], stripe: int) -> Iterator[Batch]:
        """The batches in order."""
        ahead: deque[Future[Batch]] = deque()
        coming = iter(batches)
        while True:
            while len(ahead) < _AHEAD and (batch := next(coming, None)):
                ahead.append(self._pool.submit(self._read, batch, self._map(batch, stripe), stripe))
            if not ahead:
                return
            yield ahead.popleft().result()

    def _map(self, rows: Rows, stripe: int) -> np.ndarray:
        """The numbers of some rows where they lie in a file, which the system begins to read."""
        layout, item, path = self._layout, self._dtype.itemsize, self._path_of(rows.shard)
        low, high = layout.bounds(stripe)
        begin = DATA_OFFSET + (rows.first * layout.numbers + low) * item
        end = DATA_OFFSET + ((rows.last - 1) * layout.numbers + high) * item
        start = begin - begin % mmap.PAGESIZE
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < end:
                raise _shorter(path)
            if layout.stripes == 1:
                os.posix_fadvise(file.fileno(), begin, end - begin, os.POSIX_FADV_WILLNEED)
            mapped = mmap.mmap(file.fileno(), end - start, prot=mmap.PROT_READ, offset=start)
        shape, strides = (rows.last - rows.first, high - low), (layout.numbers * item, item)
        return np.ndarray(shape, self._dtype, mapped, begin - start, strides)

    def _read(self, rows: Rows, numbers: np.ndarray, stripe: int) -> Batch:
        """Bring the pages of some rows piece by piece, and hash each."""
        layout, digest = self._layout, 0
        step = 1 if layout.stripes > 1 else layout.unit_rows
        for row in range(0, len(numbers), step):
            piece = numbers[row : row + step].reshape(-1).view(np.uint8)  # whole rows lie together
            self._populate(rows.shard, piece)
            digest ^= piece_digest(piece, layout.piece(rows.first + row, stripe))
        self.digests[rows.shard] ^= np.frombuffer(digest.to_bytes(16, "big"), np.uint8)
        return rows, numbers

    def _populate(self, shard: int, piece: np.ndarray) -> None:
        """Bring the pages of a piece: where a file ends too early, an error and not a signal."""
        begin = piece.ctypes.data - piece.ctypes.data % mmap.PAGESIZE
        nbytes = piece.ctypes.data + piece.nbytes - begin
        failed = self._madvise(begin, nbytes, _POPULATE_READ)
        if failed and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
            raise _shorter(self._path_of(shard))


def _shorter(path: Path) -> IntegrityError:
    return IntegrityError(f"{path} cannot be read any more, or became shorter while it was read")
