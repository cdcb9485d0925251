"""What a worker says of itself to the process that watches over it: memory that outlives it."""

import mmap
import os
import struct

from shardwise.processes import contain

_COUNT = struct.Struct("<q")
_BYTES = 64


class Board:
    """How many shards a worker has finished, and which one it has begun last.

    Parameters
    ----------
    descriptor
        A file in memory that both processes have; None where nobody watches.
    """

    VARIABLE = "SHARDWISE_BOARD"

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, _BYTES)

    @classmethod
    def new(cls) -> "Board":
        """A board for a worker that is going to be started."""
        descriptor = os.memfd_create("board")
        os.ftruncate(descriptor, _BYTES)
        return cls(descriptor)

    @classmethod
    def inherited(cls) -> "Board":
        """That of this process, if somebody watches over it: then it ends with its parent."""
        descriptor, _, parent = os.environ.pop(cls.VARIABLE, "").partition(" ")
        if not descriptor:
            return cls(None)
        contain.end_with_parent()
        if os.getppid() != int(parent):  # it has ended already
            os._exit(1)
        return cls(int(descriptor))

    @property
    def finished(self) -> int:
        """The shards that were finished."""
        return int(_COUNT.unpack(self._memory[: _COUNT.size])[0])

    @property
    def shard(self) -> str | None:
        """The shard that was begun last; None before the first, and at the worker's end."""
        return self._memory[_COUNT.size :].rstrip(b"\0").decode() or None

    def begin(self, shard: str) -> None:
        """Note the shard that is begun; empty at the end of the worker."""
        self._memory[_COUNT.size :] = shard.encode().ljust(_BYTES - _COUNT.size, b"\0")

    def count(self) -> None:
        """Note that one more was finished."""
        self._memory[: _COUNT.size] = _COUNT.pack(self.finished + 1)
