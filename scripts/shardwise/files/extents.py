"""Byte ranges of files, and reading them."""

import os
from collections.abc import Callable
from functools import lru_cache
from io import FileIO
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError, writing
from shardwise.files import remote
from shardwise.files.lookup import Status

Extent = tuple[str, int, int]  # a path, the offset of bytes in that file, and their number
Opened = Callable[[str, Status], object]  # takes the path of what is opened; it may raise


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
                opened(path, getattr(item, "status", None) or Status.of(os.fstat(item.fileno())))
                return item

        self.get = lru_cache(64)(open_one)
