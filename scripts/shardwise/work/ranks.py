"""Workers on several nodes: the ranks of an MPI launcher, each of which starts workers on its node.

MPI is used only to find out which ranks share a node. No message is sent once the workers have
begun, so a rank that dies costs only the shards that its workers were computing.
"""

import logging
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise import host
from shardwise.devices import choose, grants
from shardwise.errors import InputError, TryAgain
from shardwise.mpi import launch
from shardwise.processes import contain
from shardwise.work.run_time import heeding

log = logging.getLogger(__name__)

_GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class View:
    """What a rank sees: the number of its node, its devices by UUID, None on a CPU.

    ``granted`` says whether a scheduler has granted all of them.
    """

    node: int
    devices: list[str] | None = None
    granted: bool = False


def seats(views: Sequence[View], rank: int, workers: str) -> list[int]:
    """The devices that the workers of a rank look at first, by their places among those it sees.

    Ranks that see the same devices of a node share them. With ``workers: device`` each rank takes
    one, except of devices that a scheduler has granted: it may place ranks without regard to
    devices, so the ranks take them all. Nodes without a GPU stay idle if others have one, as
    products of NumPy and of a GPU are never summed.
    """
    view = views[rank]
    alike = [i for i, v in enumerate(views) if (v.node, v.devices) == (view.node, view.devices)]
    place = alike.index(rank)
    if view.devices is None:
        return [0] if place == 0 and not any(v.devices for v in views) else []
    own = list(range(len(view.devices)))[place :: len(alike)]
    return own[:1] if workers == "device" and not view.granted else own


def own_seats(ranks: int, backend: str, workers: str) -> tuple[list[int], int]:
    """In a rank: its `seats`, and how many workers its node has altogether."""
    from mpi4py import MPI

    comm = launch.get_world(ranks, "work")
    devices, granted = None, False
    if backend != "numpy" and choose.driver_cuda_version() is not None:
        try:
            devices = [device.uuid for device in choose.candidates()]
            grant = grants.read(os.environ)
            granted = grant is not None and grant.source != "lease"
        except TryAgain as error:
            log.warning("rank %d on %s has no device: %s", comm.rank, host.node(), error)
            devices = []
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    views = comm.allgather(View(node.allreduce(comm.rank, MPI.MIN), devices, granted))
    beside = [i for i, view in enumerate(views) if view.node == views[comm.rank].node]
    counts = [len(seats(views, rank, workers)) for rank in beside]
    own = seats(views, comm.rank, workers)
    MPI.Finalize()
    return own, sum(counts)


def start(ranks: int, launcher: str | None, argv: Sequence[str]) -> None:
    """Run a command as this many ranks, and return once all have ended; pass signals on to them.

    Raises InputError if this process is a rank, or there is no launcher.
    """
    if launch.is_rank():
        raise InputError(
            "this command starts its MPI ranks itself: run it without mpiexec or srun, and name "
            "your launcher, with its options, by --launcher"
        )
    words, variables = launch.call(ranks, launcher, argv)
    # A rank that dies must not end the others.
    variables |= {"SLURM_KILL_BAD_EXIT": "0"}
    log.info("starting %d ranks: %s", ranks, shlex.join(words))
    process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL)
    try:
        with heeding(lambda number, _: process.send_signal(number)):
            code = process.wait()
        log.info("the launcher has ended with %d", code)
    finally:
        contain.end([process], _GRACE_SECONDS)
