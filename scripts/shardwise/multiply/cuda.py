"""CuPy: batches lie on a GPU; threads of KvikIO fill and empty them without Python.

One stream multiplies; beside its next product, another proves the last one, and a third hashes: a
checksum takes few multiprocessors for long. Only the first calls cuBLAS, which promises the same
bits to one stream. Elements that lie in another order in a file are converted in host memory first.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from shardwise.errors import FULL, DeviceFailed
from shardwise.files.checksum import PieceChecksum
from shardwise.files.npy import DATA_OFFSET, StackWriter
from shardwise.multiply.copy import Factor
from shardwise.numerics.xxh3 import DeviceChecksum, Fragment
from shardwise.plan import memory
from shardwise.units import MIB

_DIRECT_READ, _DIRECT_WRITE = "auto_direct_io_read", "auto_direct_io_write"


class Cuda:
    """What a ring needs from a GPU: see `host.Host`. Either products are written, or only sums."""

    ahead = memory.AHEAD

    def __init__(self, xp: Any, products: bool = False) -> None:
        self.xp, self._device = xp, xp.cuda.Device()
        streams = (xp.cuda.Stream(non_blocking=True) for _ in range(4))
        self._work, self._proof, self._beside, self._down = streams
        self._kvikio, self._thread = _kvikio(products), ThreadPoolExecutor(1, "beside")
        through_host = self._kvikio.defaults.is_compat_mode_preferred()
        self.way = "through host memory" if through_host else "by GPUDirect Storage"

    def settle(self) -> None:
        for stream in (self._work, self._proof, self._beside, self._down):
            stream.synchronize()

    def total(self) -> int:
        return int(self._device.mem_info[1])

    def work(self) -> AbstractContextManager[Any]:
        return self._work

    def proof(self) -> AbstractContextManager[Any]:
        self._proof.wait_event(self._work.record())
        return self._proof

    def mark(self) -> Callable[[], None]:
        for stream in (self._work, self._proof):
            self._beside.wait_event(stream.record())
        event = self.xp.cuda.Event(block=True, disable_timing=True)
        event.record(self._beside)
        return event.synchronize

    def fetch(self, array: Any) -> np.ndarray:
        return array.get(stream=self._down)

    def open(self, path: str) -> Any:
        return self._kvikio.CuFile(path, "r")

    def fill(self, factor: Factor, offset: int, target: Any) -> "Sequence[Transfer | Future[None]]":
        extents = factor.extents(offset, target.nbytes)
        if extents is None:
            return [self._thread.submit(self._convert, factor, offset, target)]
        transfers, at = [], 0
        for path, begin, nbytes in extents:
            file = factor.files.get(path)
            if not at:
                self._choose_direct(file, begin, nbytes)
            part = target[at : at + nbytes]
            future = file.pread(part, nbytes, begin)
            transfers.append(Transfer(future, file, part, path))
            at += nbytes
        return transfers

    def _convert(self, factor: Factor, offset: int, target: Any) -> None:
        """Convert bytes that lie in another order, and copy them to the device, in steps."""
        with self._device, self.xp.cuda.Stream(non_blocking=True) as stream:
            for low in range(0, target.nbytes, memory.STEP_BYTES):
                part = target[low : low + memory.STEP_BYTES]
                view = np.empty(part.nbytes, np.uint8)
                factor.convert(offset + low, view)
                part.set(view)
            stream.synchronize()

    def _choose_direct(self, file: Any, begin: int, nbytes: int) -> None:
        """Have KvikIO bypass the page cache for a long read of bytes that are not cached."""
        if _unset(_DIRECT_READ):
            direct = nbytes >= MIB and not _cached(file.fileno(), begin, nbytes)
            self._kvikio.defaults.set({_DIRECT_READ: direct})

    def hashing(self, checksum: PieceChecksum) -> DeviceChecksum:
        with self._beside:
            return DeviceChecksum(self.xp, checksum)

    def hash(
        self, digest: DeviceChecksum, offset: int, raw: Any, products: bool = False
    ) -> list[Fragment]:
        if products:
            self._beside.wait_event(self._work.record())
        with self._beside:
            return digest.update(offset, raw)

    def write(self, writer: StackWriter, offset: int, raw: Any) -> "list[Transfer]":
        # By its descriptor: the file may have another name by now.
        path = f"/proc/self/fd/{writer.file.fileno()}"
        file = self._kvikio.CuFile(path, "r+")
        future = file.pwrite(raw, raw.nbytes, DATA_OFFSET + offset)
        return [Transfer(future, file, raw, writer.file.name)]


class Transfer:
    """Bytes in flight between a file and the device; both are kept alive until the bytes arrive."""

    def __init__(self, future: Any, file: Any, raw: Any, path: str) -> None:
        self._future, self._file, self._raw, self._path = future, file, raw, path
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def result(self) -> None:
        """Wait for the bytes, in any threads; DeviceFailed if CUDA fails, OSError if the disk."""
        with self._lock:
            if self._future is not None:
                try:
                    self._future.get()
                except (RuntimeError, OSError) as error:  # KvikIO says only in words what failed
                    number = next((n for n in FULL if os.strerror(n) in str(error)), errno.EIO)
                    self._error = OSError(number, os.strerror(number), self._path)
                    if "CUDA" in str(error) or "CUresult" in str(error):
                        self._error = DeviceFailed(str(error))
                self._future = self._file = self._raw = None
        if self._error is not None:
            raise self._error


def _kvikio(products: bool) -> Any:
    """KvikIO, with threads and buffer sizes that suit a GPU, unless the user sets others."""
    import kvikio
    import kvikio.defaults

    cores = len(os.sched_getaffinity(0))
    settings = {
        "num_threads": max(4, min(memory.IO_THREADS, cores - 2)),
        "task_size": memory.IO_BYTES,
        "bounce_buffer_size": memory.IO_BYTES,
        # Not the few nodes of a sum: while KvikIO's threads wait for a disk, they do not read.
        _DIRECT_WRITE: products,
    }
    kvikio.defaults.set({name: value for name, value in settings.items() if _unset(name)})
    return kvikio


def _unset(name: str) -> bool:
    """Whether the user's environment leaves a setting of KvikIO to us."""
    names = {"num_threads": ("KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS")}
    return not any(key in os.environ for key in names.get(name, (f"KVIKIO_{name.upper()}",)))


def _cached(descriptor: int, begin: int, nbytes: int) -> bool:
    """Whether the page cache seems to hold a part of a file, or cannot be asked."""
    try:
        for _ in range(2):
            # At random: the probe makes the kernel fetch the page, so a second one there would hit.
            at = random.randrange(begin, begin + nbytes)
            os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
