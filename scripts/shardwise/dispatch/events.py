"""What worker processes report, what is to be done with them, and their limits."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from shardwise.plan.memory import REDUCE_LIMIT_SECONDS


@dataclass(frozen=True)
class Event:
    """What happened to a worker."""

    # Its number in the crew; a collector of events from several crews may use other names.
    worker: Hashable
    # ``ready``: it has its device and wants a shard. ``read``: the last byte of its shard was read,
    # and it wants the next one ahead. ``queued``: the shard only has to be written, and the next
    # one begins. ``done``, ``failed``: its shard is whole, or is not; a failure without a shard
    # means that it could not begin. ``died``: the process is gone, with all shards that it had;
    # only the one that it was computing is to blame.
    kind: str
    shard: str | None = None
    # Of a failure: the exit code that a job would have ended with, None if it was killed; and the
    # reason.
    code: int | None = None
    reason: str = ""
    device: str | None = None  # UUID of its device; None on NumPy, and before it has one
    # Whether the device may be at fault. Then the process must not be used any more.
    suspect: bool = False
    barred: bool = False  # whether the device is in quarantine by now


@dataclass(frozen=True)
class Order:
    """What is to be done with a worker.

    ``kind`` is ``assign`` (with the shard), ``restart`` (a new process takes its place, and must
    not use the devices in ``without``) or ``retire``.
    """

    worker: Hashable
    kind: str
    shard: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What worker processes may take."""

    memory: int | None = None  # host bytes of each; None: what the plan says
    # Seconds to wait for a free device, as in :func:`shardwise.devices.choose.take`.
    wait: float | None = None
    # Seconds after which a worker that hangs is killed, as `hangs` defines it, and a rank without
    # a sign of life counts as lost.
    hang: float = REDUCE_LIMIT_SECONDS
    # Seconds that the scheduler was asked for, from the start of the job, if that is known.
    run_time: float | None = None

    def shared(self, workers: int) -> "Limits":
        """The limits of each of several workers, if the memory is for all of them together."""
        return replace(self, memory=self.memory and self.memory // max(1, workers))
