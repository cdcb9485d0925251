"""The ring: slots of memory that are filled with matrices, multiplied, and filled again.

A slot goes from *free* to *reading* to *queued* and back to *free*, and slots keep their order. One
thread drives the ring. It begins reads into each free slot, including those of the next shard while
this one ends; waits for the oldest read; queues checksums, product, proof and sum; and examines
the report once the device has passed the mark behind that work. Other threads read and write
(host.py, cuda.py).
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.errors import DeviceFailed, InputError, TryAgain
from shardwise.files.checksum import raw_bytes
from shardwise.multiply.operation import BatchReport, Machine, Multiplication, UserFunction, largest
from shardwise.numerics.tree import TreeSum
from shardwise.numerics.xxh3 import Fragment
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard
from shardwise.units import human_bytes

if TYPE_CHECKING:
    from shardwise.multiply.job import ShardJob


def allocate_sum(xp: Any, plan: Plan, run: range) -> TreeSum:
    """Allocate the sum of a shard, whose memory also has to suffice for the shards after it."""
    problem, nodes = plan.problem, memory.tree_nodes(own for _, own in plan.per_matrix.spans(run))
    return TreeSum(xp, problem.product_shape, problem.product_dtype, plan.per_matrix, nodes)


@dataclass(eq=False)
class _Slot:
    """Memory for a batch of factors, and the batch that it holds now."""

    left: Any
    right: Any  # B of each matrix, or the one B, or None
    job: "ShardJob | None" = None
    batch: BatchReport = field(default_factory=lambda: BatchReport(0, 0))
    place: int = 0  # of the first in the shard
    reads: list[Any] = field(default_factory=list)
    # Set once the batch is queued.
    mark: Callable[[], None] | None = None
    fragments: list[Fragment] = field(default_factory=list)
    written: Any = None
    writes: list[Any] = field(default_factory=list)


class Ring:
    """Slots that successive shards share, none of which is larger than ``shard``.

    InputError if even the smallest ring does not fit the memory, DeviceFailed or TryAgain if it
    does not fit what is free; IntegrityError if the device multiplies in a lower precision than was
    asked for (gemm.py).
    """

    def __init__(self, machine: Machine, plan: Plan, shard: Shard, most: int | None = None) -> None:
        self._machine, self._plan, self._problem = machine, plan, plan.problem
        self._keep = plan.settings.keep
        kind = UserFunction if plan.problem.result else Multiplication
        self.operation = kind(machine, plan)
        self._allocate(shard, most)
        self._free, self._reading = deque(self._slots), deque[_Slot]()
        self._queued = deque[_Slot]()
        # Nodes of the last sum, and their writes; they are valid until the next sum ends.
        self._nodes, self._writing_nodes = list[Any](), list[Any]()

    def _allocate(self, shard: Shard, most: int | None) -> None:
        """Allocate the ring: as large as is planned, or smaller while memory is short.

        ``most`` is the host memory that the whole task may take, in bytes.
        """
        cuda, total = self._machine.xp is not np, self._machine.total()
        spans = [own for _, own in self._plan.per_matrix.spans(shard.run)]
        precision = self._plan.settings.precision
        least = memory.least_bytes(self._problem, spans, self._keep, cuda, precision)
        if least > total:
            sums = ", more shards, or keep: products" if self._keep == "sum" else ""
            raise InputError(
                f"input: {self._problem.product} of {self._problem.left} {self._problem.dtype} "
                f"needs {human_bytes(least)} of memory at once, but "
                f"{'the device' if cuda else 'this machine'} has {human_bytes(total)} in all; use "
                f"a larger one, narrower elements, or matrices cut into blocks{sums}"
            )
        spare = max(0, shard.memory - most) if most and not cuda else 0
        sizes = memory.ladder(self._problem, len(shard.run), cuda)
        limit = memory.ring_bytes(self._problem, *sizes[0], self._keep) - spare
        for slots, matrices in sizes:
            size = memory.ring_bytes(self._problem, slots, matrices, self._keep)
            if size > limit and (slots, matrices) != sizes[-1]:
                continue
            try:
                self._take(slots, matrices, shard.run)
            except MemoryError:  # cupy's is one as well
                self._slots, self._outs, self._right, self._sum = [], deque(), None, None
                self._machine.release()
            else:
                return
        kind = DeviceFailed if cuda else TryAgain  # no other shard would fit the device either
        raise kind(
            f"a batch of {matrices} needs {human_bytes(least)}, but {self._machine.free()}; ask "
            "for more memory (mem_mb) or a larger device, or wait until it is free"
        )

    def _take(self, slots: int, matrices: int, run: range) -> None:
        problem, zeros = self._problem, self._machine.xp.zeros  # unused places may be multiplied
        self.matrices, own = matrices, problem.right and not problem.shared_right
        shape, outs = (matrices, *problem.product_shape), memory.outs(slots, self._keep)
        with self._machine.work():
            # The one B that serves all matrices.
            shared, dtype = problem.shared_right, problem.dtype
            self._right = zeros(problem.right, dtype) if shared else None
            self._slots = [
                _Slot(
                    zeros((matrices, *problem.left), dtype),
                    zeros((matrices, *problem.right), dtype) if own else self._right,
                )
                for _ in range(slots)
            ]
            # Memory of batches of products, and the writes from it that may be under way.
            self._outs = deque((zeros(shape, problem.product_dtype), []) for _ in range(outs))
            self._sum: TreeSum | None = None
            if self._keep == "sum":
                self._sum = allocate_sum(self._machine.xp, self._plan, run)
            self.operation.allocate(matrices)
        self._machine.settle()  # before other threads write to it
        # A slot, or memory of products, is reused once the batch in it was looked at.
        self._ahead = min(self._machine.ahead, slots - 1)
        if self._keep == "products":
            self._ahead = min(self._ahead, outs - 1)
        self.operation.try_arithmetic(self._slots[0].left, self._slots[0].right, self._outs[0][0])

    def warm(self, job: "ShardJob") -> None:
        """Take up to two batches through the ring, and drop their results.

        This compiles kernels, and lets libraries set up what they need at their first call.
        """
        self._begin(job)
        for _ in range(min(2, len(self._slots), -(-len(job.shard.run) // self.matrices))):
            slot = self._begin_reads(job)
            settle(slot.reads)
            self._machine.hash(job.factors[0].digest, 0, raw_bytes(slot.left[: slot.batch.count]))
            if not self._problem.result:  # a user's function may do anything
                with self._machine.work(), np.errstate(all="ignore"):
                    self._work(slot)
                self._machine.mark()()
                slot.batch.fetched(self._machine)
        self._drop(job)

    def compute(self, job: "ShardJob", coming: Callable[[], "ShardJob | None"]) -> None:
        """Take all batches of a shard through the ring; its writes may be in flight afterwards.

        ``coming`` is asked for the next shard once this one needs no more slots.
        """
        jobs = [job]
        for other in {slot.job for slot in self._reading} - {job}:
            self._drop(other)  # read ahead, but it does not come next
        try:
            self._begin(job)
            while True:
                self._read_ahead(jobs, coming)
                if not self._reading or self._reading[0].job is not job:
                    break
                self._queue(self._reading[0])
                self._queued.append(self._reading.popleft())
                while len(self._queued) > self._ahead:
                    self._look_at(self._queued.popleft())
            while self._queued:
                self._look_at(self._queued.popleft())
                self._read_ahead(jobs, coming)
            self._finish_sum(job)
        except BaseException:
            self._drop(job)
            raise

    def _begin(self, job: "ShardJob") -> None:
        """Take the one B ``(k, p)`` that serves all matrices, if there is one; begin a new sum."""
        if self._right is not None:
            with job.watch.timed("read"):
                right = job.read_right()
            with job.watch.timed("compute"):
                with self._machine.work():
                    self._right[...] = self._machine.xp.asarray(right)
                self._machine.settle()
        if self._sum is not None:
            with self._machine.work():
                self._sum.reset()

    def _read_ahead(self, jobs: list["ShardJob"], coming: Callable[[], "ShardJob | None"]) -> None:
        """Begin reads into free slots: of this shard, then of the next, which ``jobs`` gets too."""
        for job in jobs:
            while self._free and job.next < job.shard.stop:
                self._begin_reads(job)
            if len(jobs) == 1 and job.next == job.shard.stop and (following := coming()):
                jobs.append(following)

    def _begin_reads(self, job: "ShardJob") -> _Slot:
        """Begin to read the next batch of a shard into the slot that has been free for longest."""
        slot = self._free.popleft()
        self._reading.append(slot)
        count = min(self.matrices, job.shard.stop - job.next)
        begin = job.next - job.shard.start
        slot.job, slot.place, slot.reads = job, begin, []
        slot.batch, of = BatchReport(job.next, count), slice(begin, begin + count)
        job.next += count
        if job.weights is not None:
            slot.batch.weights = job.weights[of]
            if not slot.batch.weights.all():
                slot.batch.left_out = np.flatnonzero(slot.batch.weights == 0)
        try:
            for factor, stack in zip(job.factors, (slot.left, slot.right), strict=False):
                for low, high in factor.wanted(begin, begin + count):
                    raw = raw_bytes(stack[low - begin : high - begin])
                    slot.reads += self._machine.fill(factor, low * stack[0].nbytes, raw)
        except Exception as error:  # perhaps of the next shard: raised at its turn
            failed: Future[None] = Future()
            failed.set_exception(error)
            slot.reads.append(failed)
        return slot

    def _queue(self, slot: _Slot) -> None:
        """Wait for the reads of a slot, and queue all work on its batch."""
        job, machine, batch = slot.job, self._machine, slot.batch
        with job.watch.timed("read"):
            for read in slot.reads:
                read.result()
        with job.watch.timed("write"):
            settle(self._outs[0][1])
        with job.watch.timed("compute"):
            slot.fragments = []
            for factor, stack in zip(job.factors, (slot.left, slot.right), strict=False):
                if factor.is_whole:
                    offset, raw = slot.place * stack[0].nbytes, raw_bytes(stack[: batch.count])
                    slot.fragments += machine.hash(factor.digest, offset, raw)
                if batch.left_out is not None:
                    with machine.work():  # the host hashes them later, as they were read
                        slot.fragments = [(*place, raw.copy()) for *place, raw in slot.fragments]
                    # A user's function may not accept zeros: it gets another matrix twice.
                    like = int((batch.weights != 0).argmax()) if self._problem.result else None
                    machine.clear(stack, batch.left_out, like)
            if self._problem.result:
                machine.mark()()  # hash first: the function may change its block
            with machine.work(), np.errstate(all="ignore"):  # the checks find and name overflow
                self._work(slot)
            if slot.written is not None:
                offset = slot.place * self._problem.product_bytes
                slot.fragments += machine.hash(job.digest, offset, slot.written, products=True)
            slot.mark = machine.mark()

    def _work(self, slot: _Slot) -> None:
        """Multiply a batch, prove its products, and add them, if there is a sum."""
        out, slot.writes = self._outs[0]
        self._outs.rotate(-1)
        batch, xp = slot.batch, self._machine.xp
        products, left_out = out[: batch.count], batch.left_out
        # A user's function is not called for a batch that is left out altogether.
        if not self._problem.result or left_out is None or len(left_out) < batch.count:
            products = self.operation.run(batch, slot.left, slot.right, out)
        if left_out is not None:  # they count as zeros, whatever B or a function made of them
            products[xp.asarray(left_out)] = 0
        # With a proof, a finite ratio implies that factors and product are finite.
        proven = self.operation.proof and self.operation.strict
        if products.dtype.kind != "i" and not proven:
            batch.product = largest(xp, products)
        batch.add_up(xp)
        if self._sum is None:
            slot.written = raw_bytes(products)
        else:
            self._sum.add(products, batch.first)

    def _look_at(self, slot: _Slot) -> None:
        """Wait for the queued work of a slot, look at its report, and begin its writes."""
        job = slot.job
        with job.watch.timed("compute"):
            slot.mark()
            self._take_fragments(slot.fragments)
            job.checks.examine(slot.batch.fetched(self._machine))
        if slot.written is not None:
            slot.writes += job.write(slot.place * self._problem.product_bytes, slot.written)
        self._free.append(slot)

    def _take_fragments(self, fragments: list[Fragment]) -> None:
        for checksum, offset, raw in fragments:
            checksum.update(offset, self._machine.fetch(raw))

    def _finish_sum(self, job: "ShardJob") -> None:
        """Finish the checksums of a shard, and its sum, whose nodes begin to be written."""
        machine = self._machine
        with job.watch.timed("write"):
            settle(self._writing_nodes)
        with job.watch.timed("compute"):
            if self._sum is not None:
                with machine.work(), np.errstate(all="ignore"):
                    self._nodes = self._sum.take(self._nodes)  # gives back those of the last sum
            parts = [(i * node.nbytes, raw_bytes(node)) for i, node in enumerate(self._nodes)]
            fragments = [
                found for part in parts for found in machine.hash(job.digest, *part, products=True)
            ]
            machine.mark()()
            if self._sum is not None:
                self._sum.check()
            self._take_fragments(fragments)
            for digest in (job.digest, *(factor.digest for factor in job.factors)):
                if digest is not None:
                    digest.finish()
        for part in parts:
            self._writing_nodes += job.write(*part)

    def _drop(self, job: "ShardJob") -> None:
        """Free the slots of a shard that is given up, once nothing is in flight in them."""
        for slot in self._slots:
            if slot.job is job:
                settle(slot.reads)
        with suppress(Exception):  # if the device is lost, the next shard finds out
            self._machine.settle()
        self._queued.clear()
        self._reading = deque(slot for slot in self._reading if slot.job is not job)
        self._free = deque(slot for slot in self._slots if slot not in self._reading)


def settle(transfers: list[Any]) -> None:
    """Wait for all transfers, and ignore their errors: their shard sees these by itself."""
    while transfers:
        with suppress(Exception):
            transfers.pop().result()
