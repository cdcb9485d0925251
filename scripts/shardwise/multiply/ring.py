"""The ring: slots of memory that are filled with matrices, multiplied, and filled again.

A slot goes from *free* to *reading* to *queued* and back to *free*, and slots keep their order. One
thread drives the ring. It begins reads into each free slot, including those of the next shard while
this one ends; waits for the oldest read; queues checksums, product, proof and sum; and, once
the device has passed the mark behind that work, examines what the checks found. Other threads read
and write (host.py, cuda.py).
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardwise.errors import DeviceFailed, InputError, TryAgain
from shardwise.files.checksum import PieceChecksum, raw_bytes
from shardwise.multiply.copy import Factor
from shardwise.multiply.operation import Batch, Machine, Multiplication, UserFunction
from shardwise.numerics.tree import TreeSum
from shardwise.numerics.xxh3 import Fragment
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard
from shardwise.units import human_bytes

if TYPE_CHECKING:
    from shardwise.multiply.job import ShardJob


class Ring:
    """Slots that successive shards share, none of which is larger than ``shard``.

    ``most`` is the host memory that the whole task may take, in bytes. InputError if even the
    smallest ring does not fit the memory, DeviceFailed or TryAgain if it does not fit what is free;
    IntegrityError if the device multiplies in a lower precision than was asked for (gemm.py).
    """

    def __init__(self, machine: Machine, plan: Plan, shard: Shard, most: int | None = None) -> None:
        self._machine, self._plan, self._problem = machine, plan, plan.problem
        self._keep = plan.settings.keep
        # Nodes of the last sum, and their writes; they are valid until the next sum ends.
        self._nodes, self._writing_nodes = list[Any](), list[Any]()
        self._allocate(shard, most)
        # Free slots by number; the others hold these batches.
        self._free = deque(range(len(self._slots)))
        self._reading, self._queued = deque[Batch](), deque[Batch]()

    def _allocate(self, shard: Shard, most: int | None) -> None:
        """Allocate the ring: as large as is planned, or smaller while memory is short."""
        cuda, total, problem = self._machine.xp is not np, self._machine.total(), self._problem
        spans = [own for _, own in self._plan.per_matrix.spans(shard.run)]
        budget = memory.Budget(problem, self._plan.settings, spans)
        least = budget.work_bytes(cuda, -1)
        if least > total:
            raise InputError(
                f"input: {problem.product} of {problem.left} {problem.dtype} needs "
                f"{human_bytes(least)} of memory at once, but "
                f"{'the device' if cuda else 'this machine'} has {human_bytes(total)} in all; use "
                "a larger one, narrower elements, matrices cut into blocks, or under keep: sum "
                "more shards"
            )
        sizes, short = budget.ladder(cuda), ""
        spare = max(0, shard.memory - most) if most and not cuda else 0
        limit = budget.ring_bytes(self._machine.ahead, *sizes[0]) - spare
        fitting = [size for size in sizes if budget.ring_bytes(self._machine.ahead, *size) <= limit]
        for size in fitting or sizes[-1:]:
            try:
                return self._take(budget, *size, shard.run)
            except MemoryError as error:
                short = str(error)  # the error itself would keep what was allocated
            self._slots, self._outs, self._right, self._sum = [], deque(), None, None
            if cuda:
                self._machine.xp.get_default_memory_pool().free_all_blocks()
        kind = DeviceFailed if cuda else TryAgain  # no other shard would fit the device either
        raise kind(
            f"{short}: the least batch takes {human_bytes(least)}; ask for more memory (mem_mb) or "
            "a larger device, or wait until it is free"
        )

    def _take(self, budget: memory.Budget, slots: int, matrices: int, run: range) -> None:
        problem, zeros = self._problem, self._machine.xp.zeros  # unused places may be multiplied
        self.matrices, dtype = matrices, problem.dtype
        shape, outs = (matrices, *problem.product_shape), budget.outs(slots, self._machine.ahead)
        with self._machine.work():
            shapes = [problem.left, problem.right] if problem.right else [problem.left]
            # The one B that serves all matrices.
            self._right = zeros(shapes.pop(), dtype) if problem.shared_right else None
            # Memory for a batch each: A, and its B's, or the one B, or None.
            self._slots = [
                [*(zeros((matrices, *own), dtype) for own in shapes), self._right][:2]
                for _ in range(slots)
            ]
            self._own = len(shapes)  # factors that each matrix has for itself
            # Memory of batches of products, and the writes from it that may be under way.
            self._outs = deque((zeros(shape, problem.product_dtype), []) for _ in range(outs))
            self._sum: TreeSum | None = None
            if self._keep == "sum":
                shape, dtype = problem.product_shape, problem.product_dtype
                said, nodes = self._plan.per_matrix, budget.nodes  # as many as any shard needs
                self._sum = TreeSum(self._machine.xp, shape, dtype, said, nodes)
            kind = UserFunction if problem.result else Multiplication
            self.operation = kind(self._machine, self._plan, matrices)
        self._machine.settle()  # before other threads write to it
        # A slot, or memory of products, is reused once the batch in it was looked at.
        self._ahead = min(self._machine.ahead, slots - 1, outs - 1)
        if isinstance(self.operation, Multiplication):
            self.operation.try_arithmetic(*self._slots[0], self._outs[0][0])
            if self._machine.xp is not np:
                self._warm_up(run)

    def _warm_up(self, run: range) -> None:
        """Take one batch through all work on a GPU, which loads each kernel at its first call."""
        machine, stack = self._machine, self._slots[0][0]
        batch = Batch(cast(Any, None), 0, run.start, min(self.matrices, len(run)), 0)
        with machine.work(), np.errstate(all="ignore"):
            products = self.operation.run(batch, *self._slots[0], self._outs[0][0])
            if self._sum is not None:
                self._sum.add(products, run.start)
                self._nodes = self._sum.take(self._nodes)
        for raw in (raw_bytes(stack), raw_bytes(products)):
            digest = machine.hashing(PieceChecksum(raw.nbytes, *memory.SHARD_PIECES))
            machine.hash(digest, 0, raw, products=True)
        machine.settle()

    def compute(self, job: "ShardJob", coming: Callable[[], "ShardJob | None"]) -> None:
        """Take all batches of a shard through the ring; its writes may be in flight afterwards.

        ``coming`` is asked for the next shard once this one needs no more slots.
        """
        jobs = [job]
        for other in {batch.job for batch in self._reading} - {job}:
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
        """Read the one B ``(k, p)`` that serves all matrices, if there is one; begin a new sum."""
        if self._right is not None:
            factor, raw = job.factors[1], raw_bytes(self._right)
            with job.timed("read"):
                reads = list(self._machine.fill(factor, 0, raw))
                try:
                    for read in reads:
                        read.result()
                finally:
                    settle(reads)
            fragments = self._machine.hash(factor.digest, 0, raw)
            self._machine.settle()
            self._take_fragments(fragments)
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

    def _begin_reads(self, job: "ShardJob") -> None:
        """Begin to read the next batch of a shard into the slot that has been free for longest."""
        count = min(self.matrices, job.shard.stop - job.next)
        batch = Batch(job, self._free.popleft(), job.next, count, job.next - job.shard.start)
        self._reading.append(batch)
        job.next += count
        if job.weights is not None:
            batch.weights = job.weights[batch.place :][:count]
            batch.left_out = np.flatnonzero(batch.weights == 0)
        try:
            for factor, offset, raw in self._bytes_of(batch):
                batch.reads += self._machine.fill(factor, offset, raw)
        except Exception as error:  # perhaps of the next shard: raised at its turn
            failed: Future[None] = Future()
            failed.set_exception(error)
            batch.reads.append(failed)

    def _bytes_of(self, batch: Batch) -> Iterator[tuple[Factor, int, Any]]:
        """The factors of a batch: each with the offset in it and the bytes of the slot."""
        stacks = self._slots[batch.slot][: self._own]
        for factor, stack in zip(batch.job.factors, stacks, strict=False):
            yield factor, batch.place * stack[0].nbytes, raw_bytes(stack[: batch.count])

    def _queue(self, batch: Batch) -> None:
        """Wait for the reads of a batch, and queue all work on it."""
        job, machine = batch.job, self._machine
        with job.timed("read"):
            for read in batch.reads:
                read.result()
        with job.timed("write"):
            settle(self._outs[0][1])
        with job.timed("compute"):
            for factor, offset, raw in self._bytes_of(batch):
                batch.fragments += machine.hash(factor.digest, offset, raw)
            if self._problem.result or len(batch.left_out):
                machine.mark()()  # hash first: what follows may change the block
                self._take_fragments(batch.fragments)
            with machine.work(), np.errstate(all="ignore"):  # the checks find and name overflow
                self._work(batch)
            if batch.written is not None:
                offset = batch.place * self._problem.product_bytes
                batch.fragments += machine.hash(job.digest, offset, batch.written, products=True)
            batch.mark = machine.mark()

    def _work(self, batch: Batch) -> None:
        """Multiply a batch, prove its products, and add them, if there is a sum."""
        factors, (out, batch.writes) = self._slots[batch.slot], self._outs[0]
        self._outs.rotate(-1)
        places = None
        if len(batch.left_out):
            places = self._machine.xp.asarray(batch.left_out)
            # They may hold NaN, and a user's function may not accept zeros: take another one twice.
            like = int((batch.weights != 0).argmax())
            for stack in factors[: self._own]:
                stack[places] = stack[like] if batch.weights[like] else 0
        products = self.operation.run(batch, *factors, out)
        if places is not None:  # they count as zeros, whatever B or a function made of them
            products[places] = 0
        if self._sum is None:
            batch.written = raw_bytes(products)
        else:
            self._sum.add(products, batch.first)

    def _look_at(self, batch: Batch) -> None:
        """Wait for the queued work on a batch, look at its checks, and begin its writes."""
        job = batch.job
        with job.timed("compute"):
            batch.mark()
            self._take_fragments(batch.fragments)
            self.operation.examine(batch)
        job.pace.add(batch.count)
        if batch.written is not None:
            offset = batch.place * self._problem.product_bytes
            batch.writes += job.write(offset, batch.written)
        self._free.append(batch.slot)

    def _take_fragments(self, fragments: list[Fragment]) -> None:
        for checksum, offset, raw in fragments:
            checksum.update(offset, self._machine.fetch(raw))
        fragments.clear()

    def _finish_sum(self, job: "ShardJob") -> None:
        """Finish the checksums of a shard, and its sum, whose nodes begin to be written."""
        machine = self._machine
        with job.timed("write"):
            settle(self._writing_nodes)
        with job.timed("compute"):
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
        for batch in self._reading:  # reads of a batch that was queued have ended
            if batch.job is job:
                settle(batch.reads)
        with suppress(Exception):  # if the device is lost, the next shard finds out
            self._machine.settle()
        self._queued.clear()
        self._reading = deque(batch for batch in self._reading if batch.job is not job)
        taken = {batch.slot for batch in self._reading}
        self._free = deque(slot for slot in range(len(self._slots)) if slot not in taken)


def settle(transfers: list[Any]) -> None:
    """Wait for all transfers, and ignore their errors: their shard sees these by itself."""
    while transfers:
        with suppress(Exception):
            transfers.pop().result()
