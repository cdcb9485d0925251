"""Workers on several nodes: the ranks of an MPI launcher, each of which starts workers on its node.

MPI is used only to find out which ranks share a node. No message is sent once the workers have
begun, so a rank that dies costs only the shards that its workers were computing.
"""

import logging
import os
from collections.abc import Sequence

from shardwise import host
from shardwise.devices import choose, grants
from shardwise.errors import TryAgain

log = logging.getLogger(__name__)


def seats(views: Sequence[list[str] | None], rank: int, one: bool, gpus: bool) -> list[int]:
    """The devices that the workers of a rank look at first, by their places among those it sees.

    ``views`` are the UUIDs that each rank of its node sees, None on a CPU; ``rank`` is its number
    there. Ranks that see the same devices share them; this one takes ``one`` at most, or its part.
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
    """In a rank: its `seats`, and how many workers its node has altogether."""
    from mpi4py import MPI

    comm, devices, one = MPI.COMM_WORLD, None, workers == "device"
    if backend != "numpy" and choose.driver_cuda_version() is not None:
        try:
            devices = [device.uuid for device in choose.candidates()]
            # A scheduler may place ranks without regard to devices: they take all that it granted.
            one &= not (host.job() and grants.variable(os.environ))
        except TryAgain as error:
            log.warning("rank %d on %s has no device: %s", comm.rank, host.node(), error)
            devices = []
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    own = seats(node.allgather(devices), node.rank, one, comm.allreduce(bool(devices), MPI.LOR))
    beside = node.allreduce(len(own))
    MPI.Finalize()
    return own, beside
