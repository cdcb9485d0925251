"""What ranks do together: agree on errors, merge what they hold, share the devices of a node."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import host
from shardwise.devices import choose
from shardwise.errors import ShardwiseError, TryAgain, log, of_code, verdict


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


def merge(comm: Any, tree: Any) -> None:
    """In each round, every second rank hands its nodes to its left neighbour; rank 0 gets all.

    Neighbours hold neighbouring parts of the stack, in later rounds as well.
    """
    step = 1
    while step < comm.size:
        left, right = comm.rank - step, comm.rank + step
        if comm.rank % (2 * step):
            held = list(tree.nodes())
            comm.send([(key, array.shape, array.dtype.str) for key, array in held], left)
            for _, array in held:
                comm.Send(np.ascontiguousarray(array), left)
            return
        if right < comm.size:
            for key, shape, dtype in comm.recv(source=right):
                array = np.empty(shape, dtype)
                comm.Recv(array, right)
                tree.put(key, array)
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


def seats(views: Sequence[list[str] | None], rank: int, one: bool, gpus: bool) -> list[int]:
    """The devices that the workers of a rank look at first, by their places among those it sees.

    ``views`` are the UUIDs that each rank of its node sees, None on a CPU; ``rank`` is its number
    there. Ranks that see the same devices share them; if ``one``, this one takes one at most.
    A node without a GPU stays idle if any node has one (``gpus``), as products of NumPy and of a
    GPU are never summed.
    """
    own = views[rank]
    alike = [i for i, other in enumerate(views) if other == own]
    place = alike.index(rank)
    if own is None:
        return [0] if place == 0 and not gpus else []
    return list(range(len(own)))[place :: len(alike)][: 1 if one else None]


def own_seats(backend: str, workers: str) -> tuple[list[int], int]:
    """In a rank: the `seats` of its workers, and how many workers its node has altogether.

    No message is sent once the workers have begun: a rank that dies costs only their shards.
    """
    from mpi4py import MPI

    comm, devices, one = MPI.COMM_WORLD, None, workers == "device"
    if backend != "numpy" and choose.driver_cuda_version() is not None:
        try:
            devices = [device.uuid for device in choose.candidates()]
            # A scheduler may place ranks without regard to devices: they take all that it granted.
            one &= not (host.job() and choose.variables(os.environ))
        except TryAgain as error:
            log.warning("rank %d on %s has no device: %s", comm.rank, host.node(), error)
            devices = []
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    own = seats(node.allgather(devices), node.rank, one, comm.allreduce(bool(devices), MPI.LOR))
    beside = node.allreduce(len(own))
    MPI.Finalize()
    return own, beside
