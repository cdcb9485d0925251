"""Shards through a device of this process, each from its matrices to its receipt."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

import numpy as np

from shardwise import errors, host
from shardwise.devices import choose
from shardwise.errors import BadMatrix, DeviceFailed, InputError, IntegrityError, ShardwiseError
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.files.paths import for_bash
from shardwise.multiply import backend, copy
from shardwise.multiply.adopt import Earlier
from shardwise.multiply.copy import Factor, factors_of
from shardwise.multiply.cuda import Cuda
from shardwise.multiply.host import Host
from shardwise.multiply.operation import Machine
from shardwise.multiply.ring import Ring, settle
from shardwise.pace import Pace
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard, Source, between
from shardwise.plan.stack import InputFiles
from shardwise.records import failures, receipts
from shardwise.records.failures import note_start
from shardwise.records.store import Store

log = logging.getLogger(__name__)

# The errors of CUDA that only a faulty device causes: of ECC, NVLink, contained. A program may
# cause the others too, such as an illegal address or a full stack.
_BROKEN = (214, 220, 226)


class Session:
    """The device of this process, and what is made on it once, for all shards of a plan or for one.

    ``memory`` is how many host bytes the task may take; for the rest, see `load_backend`.
    """

    def __init__(
        self, plan: Plan, memory: int | None = None, wait: float | None = None,
        prefer: int | None = None, shard: Shard | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.store = plan, Store(plan)
        self.folder = os.stat(plan.results.root)  # identifies it even if it is renamed
        shards = [shard] if shard else plan.shards.values()
        needed = max(each.device_memory for each in shards)
        # First of all: a task that waits for a device must not hold memory meanwhile.
        with _device(np):
            self.xp, self.device = backend.load_backend(
                plan.settings.backend, needed, wait, prefer,
                lambda: {uuid: one.reason for uuid, one in failures.barred(plan.results).items()},
            )  # fmt: skip
        self.cuda = self.xp is not np
        with _device(self.xp):
            products = plan.settings.keep == "products"
            self.machine: Machine = Cuda(self.xp, products) if self.cuda else Host()
            self.versions = choose.versions(self.xp) if self.cuda else {}
            # Before the first shard's clock starts.
            self.ring = Ring(self.machine, plan, max(shards, key=lambda each: each.bytes), memory)
        self.earlier = Earlier(plan, self.xp.__name__)


def run_shard(
    plan: Plan, shard_id: str, memory: int | None = None, wait: float | None = None
) -> None:
    """Compute one shard; parameters and errors are those of `Session` and `ShardJob.run`."""
    ShardJob(Session(plan, memory, wait, shard=plan.shard(shard_id)), shard_id).run()


class ShardJob:
    """One shard on its way through the device of a session: `begin`, `compute`, `finish`.

    Each step may run in any thread: while one shard is finished, the next can be computed, and a
    third begun.
    """

    def __init__(self, session: Session, shard_id: str) -> None:
        self._session, self._plan = session, session.plan
        self.shard = session.plan.shard(shard_id)
        self.factors: list[Factor] = []
        self.inputs = InputFiles()
        self._started, self._began = time.time(), time.perf_counter()  # the latter is steady
        self._held = {"read": 0.0, "compute": 0.0, "write": 0.0}  # see docs/internals/receipts.md
        self.next = self.shard.start  # the first matrix whose read has not begun
        self.adopted = False  # whether an earlier product is used instead
        self.pace = Pace(f"shard {shard_id}", len(self.shard.run))
        self.weights = self._plan.per_matrix.weights_of(self.shard.run)
        self._copied: str | None = None  # the checksum of the copy
        self._writes: list[Any] = []
        self.totals: list[np.ndarray] = []  # the sum of each batch's forms, for the witness
        self.rows = 0.0  # see `end_to_end.product_bound`

    def run(self) -> None:
        """Compute the shard, and commit its result with a receipt.

        InputError if a number is not finite under ``nonfinite: error``; IntegrityError if an input
        is not as planned, or a product of the CPU is wrong; DeviceFailed if the GPU fails.
        """
        self.begin().compute()
        self.finish()

    def begin(self) -> Self:
        """Adopt an earlier product, or open the input; a missing copy is made first."""
        session, plan, shard = self._session, self._plan, self.shard
        with _device(session.xp):
            if session.cuda:
                session.xp.cuda.Device().use()  # in this thread too
            path = plan.results.shard(shard.input_name)
            if plan.settings.materialize and path.exists():
                with suppress(IntegrityError):
                    self._copied = session.store.copy_receipt(shard.shard).file.checksum
            self.adopted = session.earlier.adopt(shard, self._copied)
            if self.adopted:
                self.next = shard.stop
                return self
            if plan.settings.materialize and self._copied is None:
                small.refuse_moved(plan.results, session.folder)
                log.info("%s: copying its matrices", path)
                self._copied = copy.materialize(plan, shard.shard)
            copied, opener = plan.settings.materialize, session.machine.open
            self.factors = factors_of(plan, shard, self.inputs, copied, opener)
            for factor in self.factors:
                factor.digest = session.machine.hashing(factor.hashed)
            return self

    def compute(self, coming: Callable[[], "ShardJob | None"] = lambda: None) -> None:
        """Multiply and prove all matrices; writes may be in flight afterwards.

        ``coming`` returns the next shard once that has begun, to be read while this one ends. It is
        polled as soon as all reads of this shard are done or in flight.
        """
        if self.adopted:
            return
        plan, session, shard = self._plan, self._session, self.shard
        path, receipt = plan.results.product(shard.name), plan.results.receipt(shard.name)
        with ExitStack() as writing:
            small.refuse_moved(plan.results, session.folder)
            self._attempt = note_start(plan.results.starts(shard.name), session.device)
            writing.enter_context(_device(session.xp))
            # Only an earlier attempt can have left temporary files: else do not list the folder.
            sweep = self._attempt > 1
            file = writing.enter_context(commit(path, sweep=sweep, receipt=receipt))
            writing.enter_context(self.inputs.unchanged())
            # Else a thread might write to another file that has reused this descriptor by then.
            writing.callback(settle, self._writes)
            self._nodes = plan.nodes_of(shard.shard)
            shape = (len(self._nodes["nodes"] or shard.run), *plan.problem.product_shape)
            self.writer = StackWriter(file, shape, np.dtype(plan.element_type))
            self.writer.begin()
            self.digest = session.machine.hashing(self.writer.hashed)
            try:
                session.ring.compute(self, coming)
            except BadMatrix as error:
                raise _blame(plan, shard, error, self.inputs) from error
            self._writing = writing.pop_all()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time of the body as a stage of the shard; stages must not overlap."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._held[stage] += time.perf_counter() - began

    def write(self, offset: int, raw: Any) -> list[Any]:
        """Begin to write bytes of the result."""
        writes = self._session.machine.write(self.writer, offset, raw)
        self._writes += writes
        return writes

    def finish(self) -> None:
        """Wait until all is written; commit it, and a receipt with all that is known about it."""
        if self.adopted:
            return
        plan, shard, session = self._plan, self.shard, self._session
        product = plan.results.product(shard.name)
        with self.timed("write"), self._writing:
            for write in self._writes:
                write.result()
            own, *right = [factor.hashed.hexdigest() for factor in self.factors]
            if self._copied not in (None, own):
                raise _damage(plan, shard) or errors.TryAgain(
                    "the bytes of the shard's copy have changed on their way from the disk, where "
                    "they are whole; suspect the memory of this node, and try again"
                )
            witness = session.ring.operation.witness(self)
            checksum = self.writer.hashed.hexdigest()
            identity = os.fstat(self.writer.file.fileno())
        began, took = self._started, time.perf_counter() - self._began
        waiting = max(0.0, took - sum(self._held.values()))
        receipt = {
            "shard": shard.shard,
            "start": shard.start,
            "stop": shard.stop,
            "key": shard.key,
            "keep": plan.settings.keep,
            "recipe": plan.facts.recipe,
            "per_matrix": plan.per_matrix.digest(shard.run, plan.settings.keep),
            "backend": session.xp.__name__,
            "device": session.device,
            "attempt": self._attempt,
            "input_checksum": own,
            "right_checksum": right[0] if right else None,
            "proof": session.ring.operation.proof,
            "witness": witness,
            "compute": session.ring.operation.compute,
            "way": session.machine.way,
            "file": receipts.describe_file(product, self.writer, checksum, **self._nodes),
            "held": {"waiting": waiting, **self._held},
            **receipts.describe_origin("multiply", began, session.versions, began + took),
        }
        session.store.publish(shard.shard, receipt, identity)


@contextmanager
def _device(xp: Any) -> Iterator[None]:
    """Turn errors of this process's device into errors of a shard."""
    try:
        yield
    except (DeviceFailed, *errors.device_errors(xp)) as error:
        uuid = choose.taken_uuid()
        if uuid is None:  # a CPU, and this host has no other to go to
            raise IntegrityError(str(error)) from error
        broken = getattr(error.__cause__ or error, "status", 0) in _BROKEN
        suspect = broken or getattr(error, "suspect", False)
        raise DeviceFailed(f"{error} ({uuid} of {host.node()})", suspect) from error


def _blame(plan: Plan, shard: Shard, error: BadMatrix, inputs: InputFiles) -> ShardwiseError:
    """The error of a matrix that is refused: the shard's copy is damaged, or the input is bad.

    It has the first element of the factors that is not finite, else the file of A. The factors are
    read again; ``inputs`` notes their files.
    """
    if plan.settings.materialize and (damaged := _damage(plan, shard)):
        return damaged

    def place(sources: tuple[Source, ...], matrix: int) -> str:
        (source,) = between(sources, matrix, matrix + 1)
        within = "" if source.count == 1 else f"matrix {matrix - source.first} of "
        return within + source.path

    problem, dtype = plan.problem, np.dtype(plan.problem.dtype).newbyteorder("<")
    step = max(1, memory.STEP_BYTES // dtype.itemsize)
    named = ("input", plan.sources), ("right", plan.facts.right_sources)
    factors = factors_of(plan, shard, inputs)  # from the input, not from a copy
    for (key, sources), factor, (rows, columns) in zip(
        named, factors, (problem.left, problem.right), strict=False
    ):
        lone = key == "right" and problem.shared_right
        matrix = 0 if lone else error.matrix
        begin = 0 if lone else (matrix - shard.start) * rows * columns
        for first in range(0, rows * columns, step):
            numbers = np.empty(min(step, rows * columns - first), dtype)
            factor.convert((begin + first) * dtype.itemsize, numbers.view(np.uint8))
            wild = ~np.isfinite(numbers)
            if wild.any():
                at = int(wild.argmax())
                row, column = divmod(first + at, columns)
                return InputError(
                    f"{key}: matrix {matrix} holds NaN or Inf: {numbers[at]} at row {row}, column "
                    f"{column} of {place(sources, matrix)} (counted from 0); correct it, or set "
                    "nonfinite: allow"
                )
    return InputError(f"{error.what} ({place(plan.sources, error.matrix)}); {error.cure}")


def _damage(plan: Plan, shard: Shard) -> IntegrityError | None:
    """The error for a shard's copy that is damaged on the disk; None if it is whole."""
    path = plan.results.shard(shard.input_name)
    copied = Store(plan).copy_receipt(shard.shard)
    if receipts.passes(receipts.check_elements, path, copied.file):
        return None
    receipt = for_bash(plan.results.shard_receipt(shard.input_name))
    return IntegrityError(
        f"{path} is damaged: its checksum differs from its receipt; rm -f {receipt}, then start "
        "the run again"
    )
