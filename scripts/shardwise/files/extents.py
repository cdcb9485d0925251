"""Byte ranges of files: reading them, and allocating disk space for a new file."""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.errors import IntegrityError, writing
from shardwise.files import remote

PAGE = 4096
_MOST_OPEN = 64
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR)

Status = os.stat_result | remote.Status
Opened = Callable[[str, Status], object]  # takes the path of what is opened; it may raise


class Extent(NamedTuple):
    """Bytes ``offset`` to ``offset + nbytes`` of a file."""

    path: str
    offset: int
    nbytes: int


class OpenFile:
    """A file that is open for reading, until the last reference to it is gone."""

    def __init__(self, path: str) -> None:
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        """Close it."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def read(self, offset: int, view: np.ndarray) -> None:
        """Fill a buffer with bytes from ``offset`` on; IntegrityError if the file ends early."""
        read_fully(self._descriptor, offset, view, self._path)


class OpenFiles:
    """The open files and objects of a reader; the least recently used are dropped.

    ``get`` returns that of a path or URL, in any thread. ``opened`` is called for each that is
    opened; ``make`` opens a file, and its result has a ``fileno``.
    """

    def __init__(
        self, opened: Opened = lambda path, status: None, make: Callable[[str], Any] = OpenFile
    ) -> None:
        def open_one(path: str) -> Any:
            with writing(path):
                item: Any = remote.Object(path) if remote.is_url(path) else make(path)
                opened(path, getattr(item, "status", None) or os.fstat(item.fileno()))
                return item

        self.get = lru_cache(_MOST_OPEN)(open_one)


def read_fully(descriptor: int, offset: int, view: np.ndarray, path: Path | str) -> None:
    """Fill a buffer with bytes of a file from ``offset`` on; IntegrityError if that ends early."""
    memory = memoryview(view)
    while memory:
        with writing(path):  # else the caller's `writing` would name the file that it writes
            got = os.preadv(descriptor, [memory], offset)
        if not got:
            raise shorter(path)
        offset, memory = offset + got, memory[got:]


def shorter(path: Path | str) -> IntegrityError:
    """The error for a file that ends too early."""
    return IntegrityError(f"{path}: became shorter while it was read")


def allocate(descriptor: int, nbytes: int, path: Path) -> None:
    """Set the size of a new file, and reserve its disk space if the file system supports that."""
    # os.posix_fallocate would write to every page of the file if there is no support.
    library, size = ctypes.CDLL(None, use_errno=True), ctypes.c_int64(nbytes)
    with writing(path):
        refused = nbytes and library.fallocate(descriptor, 0, ctypes.c_int64(0), size)
        if refused and (number := ctypes.get_errno()) not in _REFUSALS:
            raise OSError(number, os.strerror(number))
        os.ftruncate(descriptor, nbytes)
