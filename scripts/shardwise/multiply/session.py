"""A device of this process, and all that shards which follow each other share on it."""

import threading
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from shardwise.devices import choose, quarantine
from shardwise.devices.gauge import Gauge
from shardwise.errors import DeviceFailed, Quarantined
from shardwise.multiply import backend as backends
from shardwise.multiply import batch, blame
from shardwise.multiply.lanes import CudaLane, HostLane, Lane
from shardwise.plan.plan import Plan


class Session:
    """A device of this process, with the lane and slabs that are made once.

    Parameters
    ----------
    needed
        Bytes of device memory that the largest of the shards is going to take.
    memory
        Host bytes that the task may take, or None for what the plan says.
    wait, choice
        As :func:`choose.take` has them.

    Attributes
    ----------
    device, versions
        What receipts say of the device, and of its driver and libraries.
    gauge
        Samples the device; None on a CPU.

    Raises
    ------
    InputError, TryAgain
        As :func:`load_backend`.
    """

    def __init__(
        self, plan: Plan, needed: int, memory: int | None = None, wait: float | None = None,
        choice: choose.Choice | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.memory = plan, memory
        # First of all: a task that waits for a device must not hold memory meanwhile.
        barred = partial(quarantine.barred, plan.results)
        backend = plan.settings.backend
        try:
            self.xp, self.device = backends.load_backend(backend, needed, wait, choice, barred)
        except Quarantined:
            raise
        except DeviceFailed as error:
            raise blame.device_failure(plan, error, choose.taken_uuid()) from error
        self.cuda = self.xp is not np
        with self.blame():
            self.lane: Lane = CudaLane(self.xp) if self.cuda else HostLane()
            self.versions = choose.versions(self.xp) if self.cuda else {}
            batch.refuse_too_large(plan, self.cuda, self.lane.total())
        self.gauge: Gauge | None = None
        if self.cuda:
            self.gauge = Gauge(self.device["uuid"])
            # It takes 70 ms: kernels are compiled, and the first slabs read, meanwhile.
            threading.Thread(target=self.gauge.open, name="gauge", daemon=True).start()

    def blame(self, shard: str | None = None) -> AbstractContextManager[None]:
        """Raise errors of the device or of the user's function as those of a shard."""
        return blame.device_or_function(self.plan, self.xp, self.device.get("uuid"), shard)
