"""What the reduce and the collectives use of mpi4py: its names, its meaning."""

import time
from collections.abc import Callable
from typing import Any, Protocol


class Request(Protocol):
    """A message under way."""

    Test: Callable[[], bool]
    Wait: Callable[[], Any]
    Cancel: Callable[[], None]


class Comm(Protocol):
    """An intracommunicator; buffers are arrays of NumPy."""

    rank: int
    size: int
    Abort: Callable[[int], Any]
    Allgather: Callable[..., None]
    Allreduce: Callable[..., None]
    Bcast: Callable[..., None]
    Iallgather: Callable[..., Request]
    Iallreduce: Callable[..., Request]
    Ibarrier: Callable[[], Request]
    Ibcast: Callable[..., Request]
    Idup: Callable[[], tuple["Comm", Request]]
    Iprobe: Callable[..., bool]
    Irecv: Callable[..., Request]
    Isend: Callable[..., Request]
    Recv: Callable[..., None]


_LAST_WORDS_SECONDS = 0.5


def abort(comm: Comm, code: int) -> None:
    """End all ranks, once what this one has written has had time to pass through the launcher.

    MPICH's drops what it still holds when a rank aborts: the reason, often.
    """
    time.sleep(_LAST_WORDS_SECONDS)
    comm.Abort(code)
