"""What ranks do together: they agree on errors, and merge what they hold, pair by pair."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shardwise.errors import ShardwiseError, of_code, verdict


def agree(comm: Any, work: Callable[[], Any]) -> Any:
    """Do something on every rank; if any fails, raise the error of the lowest such rank on all."""
    result, error = None, None
    try:
        result = work()
    except (ShardwiseError, OSError) as caught:
        error = caught
    told = comm.allgather(error and verdict(error))
    if first := next(filter(None, told), None):
        raise of_code(*first) from error
    return result


def on_root(comm: Any, work: Callable[[], Any]) -> Any:
    """Do something on rank 0, as :func:`agree` does; the others get None."""
    return agree(comm, lambda: work() if comm.rank == 0 else None)


def merge(comm: Any, parts: Callable[[], Iterable[Any]], take: Callable[..., None]) -> None:
    """In each round, every second rank hands what it holds to its left neighbour; rank 0 gets all.

    ``parts`` gives keys and NumPy arrays; ``take`` is called with each pair of another rank.
    Neighbours hold neighbouring parts of the stack, in later rounds as well.
    """
    step = 1
    while step < comm.size:
        left, right = comm.rank - step, comm.rank + step
        if comm.rank % (2 * step):
            held = list(parts())
            comm.send([(key, array.shape, array.dtype.str) for key, array in held], left)
            for _, array in held:
                comm.Send(np.ascontiguousarray(array), left)
            return
        if right < comm.size:
            for key, shape, dtype in comm.recv(source=right):
                array = np.empty(shape, dtype)
                comm.Recv(array, right)
                take(key, array)
        step *= 2


# Below, mpi4py is imported late: the import makes a process a rank.


def world() -> Any:
    """The communicator of all ranks."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def xor(comm: Any, array: np.ndarray) -> np.ndarray:
    """The bitwise XOR over all ranks of an array of uint8."""
    from mpi4py import MPI

    found = np.empty_like(array)
    comm.Allreduce(array, found, MPI.BXOR)
    return found


def mpi_version() -> str:
    """The name and version of the MPI library, in one line."""
    from mpi4py import MPI

    return " ".join(re.split(r"[\n,\0]", MPI.Get_library_version())[0].split())
