"""NumPy: batches lie in this machine's memory, and a few threads read, hash and write."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from shardwise.files import pieces
from shardwise.files.checksum import PieceChecksum
from shardwise.files.extents import Opened, OpenFiles
from shardwise.files.npy import StackWriter
from shardwise.multiply.factor import Factor
from shardwise.numerics.xxh3 import Fragment
from shardwise.plan import memory


class Host:
    """What a ring needs of NumPy; `cuda.Cuda` has the same of a GPU.

    Attributes
    ----------
    ahead
        How many batches are queued before the first of them is waited for.
    bytes_by
        How bytes go to where they are multiplied, as receipts say it.
    """

    xp = np
    ahead, bytes_by = 0, "threads"

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(memory.READERS, "file")

    def bind(self) -> None:
        """Make the calling thread use this device."""

    def settle(self) -> None:
        """Wait until nothing that was queued is under way."""

    def release(self) -> None:
        """Give back memory that is no longer used."""

    def free(self) -> str:
        """How much memory there is, as text."""
        return "this machine has less"

    def total(self) -> int:
        """Bytes of memory that there are in all."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def work(self) -> AbstractContextManager[Any]:
        """What is called inside is queued behind all work so far."""
        return nullcontext()

    def clear(self, stack: Any, places: np.ndarray, like: int | None) -> None:
        """Queue other numbers for some matrices of a slot, behind their hashing.

        Zeros, or those of the matrix ``like``.
        """
        stack[places] = 0 if like is None else stack[like]

    def mark(self) -> Callable[[], None]:
        """Waits until all that was queued so far is done."""
        return lambda: None

    def fetch(self, array: Any) -> np.ndarray:
        """A small array in host memory, after the work that made it."""
        return array

    def open_files(self, opened: Opened) -> OpenFiles:
        """The files that `fill` reads."""
        return OpenFiles(opened)

    def fill(self, factor: Factor, offset: int, target: np.ndarray) -> list[Future[None]]:
        """Begin to read the bytes of a factor from byte ``offset`` on; hashed as they come."""
        return [
            self._pool.submit(factor.read, offset + low, target[low:high])
            for low, high in _parts(offset, target.nbytes)
        ]

    def later(self, work: Callable[[], None]) -> Future[None]:
        """Have another thread do some work."""
        return self._pool.submit(work)

    def hashing(self, checksum: PieceChecksum) -> None:
        """What `hash` adds to; None as bytes are hashed where they are read and written."""

    def hash(self, digest: Any, offset: int, raw: Any, products: bool = False) -> list[Fragment]:
        """Queue the hashing of bytes; the fragments that the host is to take once it is done."""
        return []

    def write(self, writer: StackWriter, offset: int, raw: np.ndarray) -> list[Future[None]]:
        """Begin to write bytes that are done, from byte ``offset`` of the elements on."""
        return [
            self._pool.submit(writer.write_at, offset + low, raw[low:high])
            for low, high in _parts(offset, raw.nbytes)
        ]


def _parts(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Cut bytes where the parts of the whole are cut, so that pieces of checksums stay whole."""
    at = 0
    while at < nbytes:
        high = min(nbytes, at + pieces.PART_BYTES - (offset + at) % pieces.PART_BYTES)
        yield at, high
        at = high
