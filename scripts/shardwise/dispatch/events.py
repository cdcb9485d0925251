"""Messages between a worker process and its parent."""

import logging
from collections.abc import Hashable
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """What happened to a worker.

    Attributes
    ----------
    worker
        Its number in the crew; who collects events of several crews may use other names.
    kind
        ``ready``: it has its device and wants a shard. ``read``: the last byte of its shard is
        read, it wants the next one ahead. ``done``, ``failed``: its shard is whole, or is not; a
        failure without a shard is one to begin at all. ``spent``: its shard is whole, but left in
        the process what nothing removes: another process has to go on. ``died``: the process is
        gone, with the shard that it computed, if any; what it was assigned ahead is untouched.
    code, reason
        Of a failure: the exit code that a job would have ended with, None where it was killed.
        The reason of ``spent`` as well.
    device
        UUID of its device; None on NumPy, and before it has one.
    suspect
        Whether the device may be at fault. The process is not to be used any more.
    barred
        Whether the device is in quarantine by now.
    """

    worker: Hashable
    kind: str
    shard: str | None = None
    code: int | None = None
    reason: str = ""
    device: str | None = None
    suspect: bool = False
    barred: bool = False


@dataclass(frozen=True)
class Task:
    """What all workers of a crew are told: the path of the plan, and the limits of each of them."""

    plan: str
    memory: int | None
    wait: float | None
