"""NumPy: batches lie in this machine's memory, and a few threads read, hash and write."""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.files import pieces
from shardwise.files.checksum import PieceChecksum
from shardwise.files.extents import OpenFile
from shardwise.files.npy import StackWriter
from shardwise.multiply.copy import Factor
from shardwise.numerics.xxh3 import Fragment
from shardwise.plan import memory
from shardwise.units import MIB

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class Host:
    """What a ring needs from a machine, on NumPy; `cuda.Cuda` has the same methods on a GPU."""

    xp = np
    ahead = 0  # how many batches may stay queued before the ring waits for the oldest
    way = "through host memory"  # how bytes get from files to the device, and back

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(memory.READERS, "file")
        # The C library keeps freed memory for the next array; see docs/internals/multiply.md.
        with suppress(AttributeError):  # only glibc has this function
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, 32 * MIB), mallopt(_M_TRIM_THRESHOLD, 128 * MIB)

    def settle(self) -> None:
        """Wait until all queued work is done."""

    def total(self) -> int:
        """The total memory, in bytes."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def work(self) -> AbstractContextManager[Any]:
        """A context: work that is called inside is queued after all earlier work."""
        return nullcontext()

    def proof(self) -> AbstractContextManager[Any]:
        """A context: work that is called inside follows earlier work, but may run beside later."""
        return nullcontext()

    def mark(self) -> Callable[[], None]:
        """A function that waits until all work queued so far is done."""
        return lambda: None

    def fetch(self, array: Any) -> np.ndarray:
        """A small array, copied to host memory; the work that makes it must already be done."""
        return array

    open = OpenFile  # a file that `fill` reads

    def fill(self, factor: Factor, offset: int, target: np.ndarray) -> list[Future[None]]:
        """Begin to read bytes of a factor from byte ``offset`` on; here the threads also hash."""
        return self._in_parts(factor.read, offset, target)

    def hashing(self, checksum: PieceChecksum) -> None:
        """The digest that `hash` adds to; None here, as threads hash what they read and write."""

    def hash(self, digest: Any, offset: int, raw: Any, products: bool = False) -> list[Fragment]:
        """Queue the hashing of bytes; return the fragments that the host has to hash after that."""
        return []

    def write(self, writer: StackWriter, offset: int, raw: np.ndarray) -> list[Future[None]]:
        """Begin to write finished bytes, from byte ``offset`` of the elements on."""
        return self._in_parts(writer.write_at, offset, raw)

    def _in_parts(self, call: Callable[..., None], at: int, raw: np.ndarray) -> list[Future[None]]:
        """Have threads take bytes, cut at multiples of `PART_BYTES`: checksum pieces stay whole."""
        part, end = pieces.PART_BYTES, raw.nbytes
        cuts = pairwise([0, *range(part - at % part, end, part), end])
        return [self._pool.submit(call, at + low, raw[low:high]) for low, high in cuts]
