"""Shards through a device of this process, each from its matrices to its receipt."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from shardwise.devices import choose
from shardwise.files import small
from shardwise.files.checksum import raw_bytes
from shardwise.files.commit import commit
from shardwise.files.extents import OpenFiles
from shardwise.files.npy import StackWriter
from shardwise.multiply import backend as backends
from shardwise.multiply import blame, copy
from shardwise.multiply.adopt import Earlier
from shardwise.multiply.checks import ShardChecks
from shardwise.multiply.cuda import Cuda
from shardwise.multiply.factor import Factor
from shardwise.multiply.host import Host
from shardwise.multiply.operation import Machine
from shardwise.multiply.ring import Ring, settle
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.plan.stack import StackReader
from shardwise.records import failures, receipts
from shardwise.records.starts import forget_start, note_start
from shardwise.records.timeline import Stopwatch

log = logging.getLogger(__name__)


class Session:
    """The device of this process, and what is made on it once, for all shards of a plan or for one.

    ``memory`` is how many host bytes the task may take; None: as many as the plan says. For the
    other parameters, and for the errors, see `load_backend`.
    """

    def __init__(
        self, plan: Plan, memory: int | None = None, wait: float | None = None,
        prefer: int | None = None, shard: Shard | None = None,
    ) -> None:  # fmt: skip
        self.plan, self._memory = plan, memory
        self.folder = os.stat(plan.results.root)  # identifies it even if it is renamed
        shards = [shard] if shard else plan.shards.values()
        self.largest = max(shards, key=lambda each: each.bytes)
        needed = max(each.device_memory for each in shards)
        # First of all: a task that waits for a device must not hold memory meanwhile.
        with blame.device(np):
            self.xp, self.device = backends.load_backend(
                plan.settings.backend, needed, wait, prefer, self._barred
            )
        self.cuda = self.xp is not np
        with blame.device(self.xp):
            products = plan.settings.keep == "products"
            self.machine: Machine = Cuda(self.xp, products) if self.cuda else Host()
            self.versions = choose.versions(self.xp) if self.cuda else {}
        self.earlier = Earlier(plan, self.xp.__name__)
        self._ring: Ring | None = None

    def ring(self) -> Ring:
        """The ring that all shards go through; made at the first call, or later if that failed."""
        if self._ring is None:
            self._ring = Ring(self.machine, self.plan, self.largest, self._memory)
        return self._ring

    def _barred(self) -> dict[str, str]:
        """The devices that this run does not take again: what went wrong on each, by UUID."""
        failed = failures.barred(self.plan.results)
        return {uuid: failure.reason for uuid, failure in failed.items()}


def run_shard(
    plan: Plan, shard_id: str, memory: int | None = None, wait: float | None = None
) -> None:
    """Compute the products of one shard, or their sum, and commit them with a receipt.

    Parameters and errors are those of :class:`Session` and :meth:`ShardJob.run`.
    """
    session = Session(plan, memory, wait, shard=plan.shard(shard_id))
    warm(session)
    ShardJob(session, shard_id).run()


def warm(session: Session) -> None:
    """Prepare now what the first shard would have to wait for, as far as possible.

    That is memory, compiled kernels, the known product and pinned buffers; on a CPU none of them
    takes long. No error is raised: the first shard meets it again, and says who is to blame.
    """
    if not session.cuda:
        return
    job = ShardJob(session, session.largest.shard)
    try:
        ring = session.ring()
        if not session.plan.settings.materialize or copy.existing_copy(session.plan, job.shard):
            ring.warm(job.open())
    except Exception as error:
        log.info("%s", error)


class ShardJob:
    """One shard on its way through the device of a session: `begin`, `compute`, `finish`.

    Each step may run in any thread: while one shard is finished, the next can be computed, and a
    third begun.
    """

    def __init__(self, session: Session, shard_id: str) -> None:
        self._session, self._plan = session, session.plan
        self.shard = session.plan.shard(shard_id)
        self.factors: list[Factor] = []  # A, and B where each matrix has its own
        self.watch = Stopwatch()
        self.next = self.shard.start  # the first matrix whose read has not begun
        self.adopted = False  # whether an earlier product is used instead
        self.weights = self._plan.per_matrix.weights_of(self.shard.run)
        self._copied: str | None = None  # the checksum of the copy
        self._right: str | None = None  # the checksum of the one B that serves all matrices
        self._writes: list[Any] = []

    def run(self) -> None:
        """Compute the shard, and commit its result with a receipt.

        Raises
        ------
        InputError
            NaN or Inf under ``nonfinite: error``, overflow, or a config that does not fit.
        IntegrityError
            An input that is not the planned one; on the CPU a product that fails its proof.
        DeviceFailed
            The GPU is lost, busy or full, or its product fails the proof.
        """
        self.begin().compute()
        self.finish()

    def begin(self) -> Self:
        """Adopt an earlier product, or open the input; a missing copy is made first."""
        session, plan, shard = self._session, self._plan, self.shard
        with blame.device(session.xp):
            session.machine.bind()
            self.watch = Stopwatch()  # anew
            if plan.settings.materialize:
                self._copied = copy.existing_copy(plan, shard)
            self.adopted = session.earlier.adopt(shard, self._copied)
            if self.adopted:
                self.next = shard.stop
                return self
            if plan.settings.materialize and self._copied is None:
                small.refuse_moved(plan.results, session.folder)
                log.info("%s: copying its matrices", plan.results.shard(shard.input_name))
                copy.materialize(plan, shard.shard)
                self._copied = copy.existing_copy(plan, shard)
            return self.open()

    def open(self) -> Self:
        """Open the input, if it is there; nothing is read yet."""
        plan, shard, machine = self._plan, self.shard, self._session.machine
        zeros = None  # a mask of matrices of weight 0, if there are any
        if self.weights is not None and not self.weights.all():
            zeros = self.weights == 0
        self.inputs = InputFiles()
        files = machine.open_files(self.inputs.compare)
        if plan.settings.materialize:
            path = str(plan.results.shard(shard.input_name))
            sources = [Source(path, shard.start, shard.stop - shard.start, "")]
        else:
            sources = plan.sources_of(shard.start, shard.stop)
        stacks = [StackReader(sources, plan.problem.left, plan.dtype, self.inputs)]
        if plan.problem.right and not plan.problem.shared_right:
            stacks.append(self._right_stack())
        # A copy is read as a whole, to compare its checksum.
        masks = None if plan.settings.materialize else zeros, zeros
        self.factors = [
            Factor(stack, shard.run, files, mask)
            for stack, mask in zip(stacks, masks, strict=False)
        ]
        for factor in self.factors:
            factor.digest = machine.hashing(factor.hashed)
        return self

    def _right_stack(self) -> StackReader:
        plan = self._plan
        return StackReader(plan.facts.right_sources, plan.problem.right, plan.dtype, self.inputs)

    def compute(self, coming: Callable[[], "ShardJob | None"] = lambda: None) -> None:
        """Multiply and prove all matrices; writes may be in flight afterwards.

        ``coming`` returns the next shard once that has begun, to be read while this one ends. It is
        polled as soon as all reads of this shard are done or in flight.
        """
        if self.adopted:
            return
        plan, session, shard = self._plan, self._session, self.shard
        with ExitStack() as opened:
            small.refuse_moved(plan.results, session.folder)
            self._attempt = note_start(plan.results.starts(shard.name), session.device)
            opened.enter_context(blame.device(session.xp))
            ring = session.ring()
            committing = self._committing = opened.enter_context(ExitStack())
            path, receipt = plan.results.product(shard.name), plan.results.receipt(shard.name)
            # Only an earlier attempt can have left temporary files: else do not list the folder.
            sweep = self._attempt > 1
            file = committing.enter_context(commit(path, sweep=sweep, receipt=receipt))
            committing.enter_context(self.inputs.unchanged())
            committing.enter_context(blame.input_file(plan, shard, self.inputs))
            # Else a thread might write to another file that has reused this descriptor by then.
            committing.callback(settle, self._writes)
            self._nodes = plan.nodes_of(shard.shard)
            shape = (len(self._nodes["nodes"] or shard.run), *plan.problem.product_shape)
            self.writer = StackWriter(file, shape, np.dtype(plan.element_type))
            self.writer.begin()
            self.digest = session.machine.hashing(self.writer.hashed)
            self.checks = ShardChecks(plan, ring.operation)
            ring.compute(self, coming)
            self._open = opened.pop_all()

    def read_right(self) -> np.ndarray:
        """Read the one B that serves all matrices, and hash it."""
        factor = Factor(self._right_stack(), range(1), OpenFiles(self.inputs.compare))
        right = np.empty(self._plan.problem.right, self._plan.dtype)
        factor.read(0, raw_bytes(right))
        self._right = factor.checksum()
        return right

    def write(self, offset: int, raw: Any) -> list[Any]:
        """Begin to write bytes of the result."""
        writes = self._session.machine.write(self.writer, offset, raw)
        self._writes += writes
        return writes

    def finish(self) -> None:
        """Wait until all is written, and commit it with its receipt."""
        if self.adopted:
            return
        plan, shard, session, watch = self._plan, self.shard, self._session, self.watch
        with self._open:
            with watch.timed("write"), self._committing:
                for write in self._writes:
                    write.result()
                facts, checksum = self._prove(), self.writer.hashed.hexdigest()
                identity = os.fstat(self.writer.file.fileno())
            product, finished = plan.results.product(shard.name), watch.end()
            receipt = facts | {
                "file": receipts.describe_file(product, self.writer, checksum, **self._nodes),
                "bytes_by": session.machine.bytes_by,
                "recipe": plan.facts.recipe,
                "per_matrix": plan.per_matrix.digest(shard.run, plan.settings.keep),
                "held": watch.held(finished),
                **receipts.describe_origin("multiply", watch.unix, session.versions, finished),
            }
            receipts.write_for(plan.results.receipt(shard.name), receipt, product, identity)
        forget_start(plan.results.starts(shard.name))

    def _prove(self) -> dict[str, Any]:
        """Compare the copy with its receipt, and products with factors; return the facts."""
        plan, shard, operation = self._plan, self.shard, self.checks.operation
        own, *right = [factor.checksum() for factor in self.factors]
        if self._copied not in (None, own):
            raise copy.damaged(plan, shard)
        with np.errstate(all="ignore"):
            witness = self.checks.witness()
        return {
            "shard": shard.shard,
            "start": shard.start,
            "stop": shard.stop,
            "key": shard.key,
            "keep": plan.settings.keep,
            "backend": self._session.xp.__name__,
            "device": self._session.device,
            "attempt": self._attempt,
            "input_checksum": own,
            "right_checksum": right[0] if right else self._right,
            "proof": operation.proof,
            **witness,
            "compute": operation.compute,
        }
