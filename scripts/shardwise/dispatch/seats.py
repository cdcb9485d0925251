"""Which devices of its node a rank works with, under any placement of the ranks.

Ranks that see the same devices share them, by their order on the node; if the scheduler shows each
rank devices of its own, the rank takes those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.errors import TryAgain


@dataclass(frozen=True)
class View:
    """What a rank sees of its node: a number that all its ranks share, its name and its devices."""

    node: int
    host: str
    # UUIDs of those that it may take, in the node's order; None if it computes on the CPU.
    devices: list[str] | None = None
    granted: bool = False  # whether a scheduler has granted all of them
    trouble: str | None = None  # why there is none although there should be


@dataclass(frozen=True)
class Seat:
    """The part that a rank has of its node.

    ``workers`` processes, and ``share``: which devices they look at first, as `Crew` has it.
    """

    node: int
    host: str
    workers: int
    share: tuple[int, int] = (0, 1)


def seated(views: Sequence[View], workers: str) -> list[Seat]:
    """The seat of each rank, from what each sees.

    Parameters
    ----------
    workers
        ``node``: the ranks of a node share all its devices. ``device``: the same if a scheduler
        granted the devices, as it may place ranks without regard to them; otherwise each rank has
        one worker.

    Raises
    ------
    TryAgain
        If no rank has a device although there is a driver.
    """
    on_gpus = any(view.devices for view in views)
    seats = []
    for rank, view in enumerate(views):
        alike = [i for i, v in enumerate(views) if (v.node, v.devices) == (view.node, view.devices)]
        place = alike.index(rank)
        if view.devices is None:
            # Products of NumPy and of a GPU are never summed, so nodes without a GPU stay idle.
            count = int(place == 0 and not on_gpus)
        else:
            count = len(view.devices[place :: len(alike)])
        if workers == "device" and not view.granted:
            count = min(count, 1)
        seats.append(Seat(view.node, view.host, count, (place, len(alike))))
    if not any(seat.workers for seat in seats):
        raise TryAgain(next(view.trouble for view in views if view.trouble))
    return seats


def shown(views: Sequence[View], seats: Sequence[Seat]) -> Iterator[str]:
    """How many workers each node has, and which devices stay idle, as lines for the log."""
    nodes: dict[int, list[int]] = {}
    for rank, view in enumerate(views):
        nodes.setdefault(view.node, []).append(rank)
    total = sum(seat.workers for seat in seats)
    yield f"worker processes: {total}; MPI ranks: {len(seats)}; nodes: {len(nodes)}"
    for ranks in nodes.values():
        workers = sum(seats[rank].workers for rank in ranks)
        devices = {uuid for rank in ranks for uuid in views[rank].devices or ()}
        trouble = next((views[rank].trouble for rank in ranks if views[rank].trouble), None)
        if not trouble and len(devices) > workers:
            trouble = "devices stay idle; start a rank for each (tasks in the profile, --ranks), "
            trouble += "or set workers: node"
        if trouble:
            counts = f"{len(ranks)} ranks, {len(devices)} devices, {workers} workers"
            yield f"{views[ranks[0]].host}: {counts}: {trouble}"
