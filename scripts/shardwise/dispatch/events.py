"""What worker processes are told, what they tell, and what is to be done with them."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from shardwise.plan.memory import REDUCE_LIMIT_SECONDS


@dataclass(frozen=True)
class Event:
    """What happened to a worker."""

    # Its number in the crew; who collects events of several crews may use other names.
    worker: Hashable
    # ``ready``: it has its device and wants a shard. ``read``: the last byte of its shard is
    # read, it wants the next one ahead. ``queued``: nothing of the shard is left but to write it,
    # and the next one begins. ``done``, ``failed``: its shard is whole, or is not; a failure
    # without a shard is one to begin at all. ``died``: the process is gone, with all shards that it
    # had; only the one that it computed is to blame.
    kind: str
    shard: str | None = None
    # Of a failure: the exit code that a job would have ended with, None where it was killed; and
    # the reason.
    code: int | None = None
    reason: str = ""
    device: str | None = None  # UUID of its device; None on NumPy, and before it has one
    # Whether the device may be at fault. The process is not to be used any more.
    suspect: bool = False
    barred: bool = False  # whether the device is in quarantine by now


@dataclass(frozen=True)
class Order:
    """What is to be done with a worker.

    ``kind`` is ``assign`` (with the shard), ``restart`` (a new process takes its place; devices
    that it must not take stand in ``without``) or ``retire``.
    """

    worker: Hashable
    kind: str
    shard: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What worker processes may take."""

    memory: int | None = None  # host bytes of each; None: what the plan says
    # Seconds to wait for a free device, as :func:`shardwise.devices.choose.take` has it.
    wait: float | None = None
    # Seconds after which a worker that hangs is killed, as `hangs` defines it, and a rank without
    # a sign of life counts as lost.
    hang: float = REDUCE_LIMIT_SECONDS
    # Seconds that the scheduler was asked for, from the start of the job, if that is known.
    run_time: float | None = None

    def shared(self, workers: int) -> "Limits":
        """The limits of each of several workers, where the memory is that of all."""
        return replace(self, memory=self.memory and self.memory // max(1, workers))
