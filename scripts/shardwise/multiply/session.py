"""A device of this process, and all that shards which follow each other share on it."""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue

import numpy as np

from shardwise.devices import choose, quarantine
from shardwise.errors import DeviceFailed, Quarantined
from shardwise.files import pieces
from shardwise.multiply import backend as backends
from shardwise.multiply import batch, blame, pipeline
from shardwise.multiply.batch import Batches
from shardwise.multiply.lanes import CudaLane, HostLane, Lane
from shardwise.plan import memory as plan_memory
from shardwise.plan.plan import Plan, Shard

log = logging.getLogger(__name__)


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
    folder
        Which results folder this is, whatever its name becomes.

    Raises
    ------
    InputError, TryAgain
        As :func:`load_backend`.
    """

    def __init__(
        self, plan: Plan, needed: int, memory: int | None = None, wait: float | None = None,
        choice: choose.Choice | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.memory, self.folder = plan, memory, os.stat(plan.results.root)
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
        self._batches: Batches | None = None
        self._to_write: SimpleQueue[np.ndarray] | None = None
        self._rooms, self._places = [threading.Semaphore(0) for _ in ("left", "right")], 0

    def warm(self, shard: Shard) -> None:
        """Make now what the first shard would wait for, as far as it can be had.

        Memory, compiled kernels and the known product for shards up to the size of this one; on a
        CPU nothing of that takes long. What goes wrong is not raised: the first shard meets it
        again, and says whose fault it is.
        """
        if not self.cuda:
            return
        with ThreadPoolExecutor(1, "warm") as beside:
            read = beside.submit(self._warm_slabs, shard)
            for step in (lambda: self.batches(shard), read.result):
                try:
                    step()
                except Exception as error:
                    log.info("%s", error)

    def _warm_slabs(self, shard: Shard) -> None:
        self.lane.bind()
        self.slabs_to_write(shard)
        problem, count = self.plan.problem, shard.stop - shard.start
        right = 0 if problem.shared_right else problem.right_bytes
        sizes = [count * nbytes for nbytes in (problem.matrix_bytes, right) if nbytes]
        taken = [
            self.lane.slab(pipeline.read_slab_bytes(min(pieces.SLAB_BYTES, size)))
            for size in sizes
            for _ in range(self.slabs_within(shard)[0])
        ]
        for slab in taken:
            self.lane.keep(slab)

    def batches(self, shard: Shard) -> Batches:
        """The memory of batches, which shards that follow each other share."""
        if self._batches is None or self._batches.count < len(shard.run):
            self._batches = None  # first of all: there may be no room for both
            self._batches = Batches(self.lane, self.plan, shard.run)
        return self._batches

    def forget_batches(self) -> None:
        """Have the next shard take new memory: after a failure nobody knows what is in use."""
        self._batches = None

    def slabs_within(self, shard: Shard) -> tuple[int, int]:
        """Slabs to read into, for each factor, and to write from, for a shard."""
        return plan_memory.slabs_within(
            self.plan.problem, shard.run, self.plan.settings.keep, self.cuda,
            self.memory or shard.memory,
        )  # fmt: skip

    def rooms(self, slabs: int) -> list[threading.Semaphore]:
        """For each factor a place per slab to read into; as many as the largest shard asked for.

        Consecutive shards share them, so one is read while the slabs of the previous one come free.
        """
        for room in self._rooms if slabs > self._places else ():
            room.release(slabs - self._places)
        self._places = max(self._places, slabs)
        return self._rooms

    def slabs_to_write(self, shard: Shard) -> SimpleQueue[np.ndarray]:
        """Slabs to write from, which shards that follow each other share; made for the first."""
        if self._to_write is None:
            slabs: SimpleQueue[np.ndarray] = SimpleQueue()
            size = min(pieces.SLAB_BYTES, shard.product_bytes)
            for _ in range(self.slabs_within(shard)[1]):
                slabs.put(self.lane.slab(size)[:size])
            self._to_write = slabs
        return self._to_write

    def blame(self, shard: str | None = None) -> AbstractContextManager[None]:
        """Raise errors of the device or of the user's function as those of a shard."""
        return blame.device_or_function(self.plan, self.xp, self.device.get("uuid"), shard)
