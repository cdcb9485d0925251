"""A device of this process, and the ring that shards which follow each other share on it."""

import os

import numpy as np

from shardwise.devices import choose
from shardwise.multiply import backend as backends
from shardwise.multiply import blame, checks
from shardwise.multiply.adopt import Earlier
from shardwise.multiply.cuda import Cuda
from shardwise.multiply.host import Host
from shardwise.multiply.operation import Machine
from shardwise.multiply.ring import Ring
from shardwise.plan.plan import Plan, Shard
from shardwise.records import failures


class Session:
    """A device of this process, and what is made on it once, for any shard of a plan or for one.

    ``memory`` are the host bytes that the task may take, None for what the plan says; the rest, and
    what it raises, is as `load_backend` has it.
    """

    def __init__(
        self, plan: Plan, memory: int | None = None, wait: float | None = None,
        prefer: int | None = None, shard: Shard | None = None,
    ) -> None:  # fmt: skip
        self.plan, self._memory = plan, memory
        self.folder = os.stat(plan.results.root)  # which it is, whatever its name becomes
        shards = [shard] if shard else plan.shards.values()
        self.largest = max(shards, key=lambda each: each.bytes)
        needed = max(each.device_memory for each in shards)
        # First of all: a task that waits for a device must not hold memory meanwhile.
        with blame.device_or_function(plan, np):
            self.xp, self.device = backends.load_backend(
                plan.settings.backend, needed, wait, prefer, self._barred
            )
        self.cuda = self.xp is not np
        with blame.device_or_function(plan, self.xp):
            products = plan.settings.keep == "products"
            self.machine: Machine = Cuda(self.xp, products) if self.cuda else Host()
            self.versions = choose.versions(self.xp) if self.cuda else {}
            checks.refuse_too_large(plan, self.cuda, self.machine.total())
        self.earlier = Earlier(plan, self.xp.__name__)
        self._ring: Ring | None = None

    def ring(self) -> Ring:
        """The ring that all shards go through, made for the first."""
        if self._ring is None:
            self._ring = Ring(self.machine, self.plan, self.largest, self._memory)
        return self._ring

    def _barred(self) -> dict[str, str]:
        """The devices, by UUID, that this run does not take again, and what each has done."""
        failed = failures.barred(self.plan.results)
        return {uuid: failure.reason for uuid, failure in failed.items()}
