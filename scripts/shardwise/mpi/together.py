"""What ranks do together: they agree on errors, and merge what they hold, two and two."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shardwise.errors import ShardwiseError, of_code, of_system


def agree(comm: Any, work: Callable[[], Any]) -> Any:
    """Do something on every rank; where any fails, raise the lowest rank's error on all.

    A rank that ends in any other way makes the launcher end the others (``python -m mpi4py``).
    """
    error: ShardwiseError | None = None
    result = None
    try:
        result = work()
    except ShardwiseError as caught:
        error = caught
    except OSError as caught:
        error = of_system(caught)
    told = comm.allgather(error and (error.exit_code, str(error)))
    if error is not None and told.index((error.exit_code, str(error))) == comm.rank:
        raise error
    first = next((one for one in told if one), None)
    if first is not None:
        raise of_code(*first)
    return result


def on_root(comm: Any, work: Callable[[], Any]) -> Any:
    """Do something on rank 0, as :func:`agree` does; the others get None."""
    return agree(comm, lambda: work() if comm.rank == 0 else None)


def merge(comm: Any, parts: Callable[[], Iterable[Any]], take: Callable[..., None]) -> None:
    """Hand over what each rank holds to its left neighbour, two and two, until rank 0 has it all.

    ``parts`` gives keys and arrays of NumPy; ``take`` is called with those of another rank.
    Neighbours hold neighbouring parts of the stack, and stay neighbours.
    """
    step = 1
    while step < comm.size:
        if comm.rank % (2 * step):
            _send(comm, list(parts()), comm.rank - step)
            return
        if comm.rank + step < comm.size:
            for key, array in _receive(comm, comm.rank + step):
                take(key, array)
        step *= 2


def _send(comm: Any, parts: list[Any], to: int) -> None:
    comm.send([(key, array.shape, array.dtype.str) for key, array in parts], to)
    for _, array in parts:
        comm.Send(np.ascontiguousarray(array), to)


def _receive(comm: Any, source: int) -> Iterable[Any]:
    for key, shape, dtype in comm.recv(source=source):
        array = np.empty(shape, dtype)
        comm.Recv(array, source)
        yield key, array


def xor(comm: Any, array: np.ndarray) -> np.ndarray:
    """The bitwise XOR over all ranks of an array of uint8."""
    from mpi4py import MPI  # whoever imports it is a rank

    found = np.empty_like(array)
    comm.Allreduce(array, found, MPI.BXOR)
    return found


def mpi_version() -> str:
    """The library of MPI, in a line."""
    from mpi4py import MPI

    line = MPI.Get_library_version().split("\n")[0].split(",")[0].rstrip("\0")
    return " ".join(line.split())
