"""Workers on several nodes: the ranks of an MPI launcher, each of which starts workers on its node.

MPI is used only to find out which ranks share a node. No message is sent once the workers have
begun, so a rank that dies costs only the shards that its workers were computing.
"""

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from shardwise import host
from shardwise.devices import choose, grants
from shardwise.errors import TryAgain

log = logging.getLogger(__name__)


class View(NamedTuple):
    """The devices that a rank sees, by UUID, None on a CPU; whether a scheduler granted them."""

    devices: list[str] | None = None
    granted: bool = False


def seats(views: Sequence[View], rank: int, workers: str, gpus: bool) -> list[int]:
    """The devices that the workers of a rank look at first, by their places among those it sees.

    ``views`` are those of the ranks of its node, ``rank`` is its number there. Ranks that see the
    same devices share them. With ``workers: device`` each rank takes one, except of devices that a
    scheduler has granted: it may place ranks without regard to devices, so the ranks take them all.
    A node without a GPU stays idle if any node has one (``gpus``), as products of NumPy and of a
    GPU are never summed.
    """
    view = views[rank]
    alike = [i for i, other in enumerate(views) if other.devices == view.devices]
    place = alike.index(rank)
    if view.devices is None:
        return [0] if place == 0 and not gpus else []
    own = list(range(len(view.devices)))[place :: len(alike)]
    return own[:1] if workers == "device" and not view.granted else own


def own_seats(backend: str, workers: str) -> tuple[list[int], int]:
    """In a rank: its `seats`, and how many workers its node has altogether."""
    from mpi4py import MPI

    comm, devices, granted = MPI.COMM_WORLD, None, False
    if backend != "numpy" and choose.driver_cuda_version() is not None:
        try:
            devices = [device.uuid for device in choose.candidates()]
            granted = bool(host.job() and grants.variable(os.environ))
        except TryAgain as error:
            log.warning("rank %d on %s has no device: %s", comm.rank, host.node(), error)
            devices = []
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    views, gpus = node.allgather(View(devices, granted)), comm.allreduce(bool(devices), MPI.LOR)
    own = [seats(views, rank, workers, gpus) for rank in range(node.size)]
    place = node.rank
    MPI.Finalize()
    return own[place], sum(map(len, own))
