"""Byte ranges of files: reading them, and allocating disk space for a new file."""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.errors import IntegrityError, writing
from shardwise.files import remote

_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR)

Status = os.stat_result | remote.Status
Opened = Callable[[str, Status], object]  # takes the path of what is opened; it may raise


class Extent(NamedTuple):
    """Bytes ``offset`` to ``offset + nbytes`` of a file."""

    path: str
    offset: int
    nbytes: int


class OpenFile(FileIO):
    """A file that is open for reading, until the last reference to it is gone."""

    def __del__(self) -> None:
        """Close it, without a warning."""
        self.close()

    def read_at(self, offset: int, view: np.ndarray) -> None:
        """Fill a buffer with bytes from ``offset`` on; IntegrityError if the file ends early."""
        memory = memoryview(view)
        while memory:
            with writing(self.name):  # else the caller's `writing` would name the file it writes
                got = os.preadv(self.fileno(), [memory], offset)
            if not got:
                raise IntegrityError(f"{self.name}: became shorter while it was read")
            offset, memory = offset + got, memory[got:]


class OpenFiles:
    """The open files and objects of a reader, by path or URL, in any thread; old ones are dropped.

    ``opened`` is called for each that is opened; ``make`` opens a file, and it has a ``fileno``.
    """

    def __init__(
        self, opened: Opened = lambda path, status: None, make: Callable[[str], Any] = OpenFile
    ) -> None:
        def open_one(path: str) -> Any:
            with writing(path):
                item: Any = remote.Object(path) if remote.is_url(path) else make(path)
                opened(path, getattr(item, "status", None) or os.fstat(item.fileno()))
                return item

        self.get = lru_cache(64)(open_one)


def allocate(descriptor: int, nbytes: int, path: Path) -> None:
    """Set the size of a new file, and reserve its disk space if the file system supports that."""
    # os.posix_fallocate would write to every page of the file if there is no support.
    library, size = ctypes.CDLL(None, use_errno=True), ctypes.c_int64(nbytes)
    with writing(path):
        refused = nbytes and library.fallocate(descriptor, 0, ctypes.c_int64(0), size)
        if refused and (number := ctypes.get_errno()) not in _REFUSALS:
            raise OSError(number, os.strerror(number))
        os.ftruncate(descriptor, nbytes)
