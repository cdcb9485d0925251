"""One shard through one device, from its matrices to its receipt."""

import logging
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, BinaryIO, Self

import numpy as np

from shardwise import host
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.multiply import blame, copy, cross_check, live
from shardwise.multiply.batch import Batches, ShardChecks
from shardwise.multiply.pipeline import Drain
from shardwise.multiply.reading import Reading
from shardwise.multiply.session import Session
from shardwise.multiply.stream import Stream
from shardwise.plan import memory as plan_memory
from shardwise.plan.nodes import cover
from shardwise.plan.plan import Plan
from shardwise.records import receipts
from shardwise.records.timeline import Stopwatch

log = logging.getLogger(__name__)


def run_shard(
    plan: Plan, shard_id: str, memory: int | None = None, wait: float | None = None
) -> None:
    """Compute the products of one shard, or their sum, and commit them with a receipt.

    Parameters and errors are those of :class:`Session` and :meth:`ShardJob.run`.
    """
    shard = plan.shard(shard_id)
    session = Session(plan, shard.device_memory, memory, wait)
    session.warm(shard)
    ShardJob(session, shard_id).run()


class ShardJob:
    """One shard on its way through the device of a session."""

    def __init__(self, session: Session, shard_id: str) -> None:
        self._session, self._plan = session, session.plan
        self.shard = session.plan.shard(shard_id)
        self._reading: Reading | None = None

    def run(self, on_read: Callable[[], None] = lambda: None) -> None:
        """Compute the shard, and commit its result with a receipt.

        Parameters
        ----------
        on_read
            Called once the last byte of the shard was read and is on its way to the device.

        Raises
        ------
        InputError
            NaN or Inf under ``nonfinite: error``, overflow, or a config that does not fit.
        IntegrityError
            An input that is not the planned one; on the CPU a product that fails its proof, or
            `WrongInput` where other matrices were multiplied than were read.
        TryAgain
            The device is busy or full: `DeviceFailed` where it is lost, `Quarantined` or
            `Disproven` where it is put into quarantine, `Misled` for a GPU's `WrongInput`.
        """
        for _ in self.steps(on_read):
            pass

    def steps(self, on_read: Callable[[], None] = lambda: None) -> Iterator[None]:
        """The same in three steps, the last of which any thread may take.

        After the first, all products are queued on the device; before the second, which takes their
        sum, the shard before this one has to be done. After it the next shard can begin.
        """
        session, shard = self._session, self.shard
        if self._reading is None:
            with session.blame(shard.shard):
                session.batches(shard)  # where there is no room for them, nothing need be read
            self.begin()
        with ExitStack() as begun:
            begun.enter_context(self._reading)  # whatever fails, no slab stays out
            small.refuse_moved(self._plan.results, session.folder)
            attempt = receipts.note_start(self._plan.results.starts(shard.shard))
            with self._at_work(attempt):
                with session.blame(shard.shard), begun.pop_all():
                    batches = session.batches(shard)
                    reference = self._reading.reference
                    every = reference.every if reference else None
                    checks = ShardChecks(self._plan, batches.operation, shard.start, every)
                    with self._result_file(attempt) as file:
                        writer = yield from self._stream(batches, checks, file, on_read)
                        proof = self._prove(checks)
                        checksum, identity = writer.checksum(), os.fstat(file.fileno())
                facts = {"file": self._file_facts(batches, writer, checksum), **proof}
                self._write_receipt(attempt, facts, identity)

    def begin(self) -> Self:
        """Open the input and begin to read; a copy of the shard that is missing is made first.

        `run` does so if nobody has. Another thread may still run the previous job, but that must
        have read its last byte and, if copies of shards are made, have released its slabs.
        """
        session, plan, shard = self._session, self._plan, self.shard
        with session.blame(shard.shard):
            session.lane.bind()
            self.watch = Stopwatch()
            session.lane.set_clock()
            slabs, _ = session.slabs_within(shard)
            copied = self._copied(slabs) if plan.settings.materialize else None
            rooms = session.rooms(slabs)
            self._reading = Reading(plan, shard, session.lane, slabs, rooms, self.watch, copied)
        return self

    def release(self) -> None:
        """Wait until no slab is held any more, so that the next shard can be copied."""
        self._reading.release()

    def _copied(self, slabs: int) -> copy.Copy:
        """What the receipt of the shard's copy says; one that is missing is made first."""
        plan, shard = self._plan, self.shard
        if (existing := copy.existing_copy(plan, shard)) is not None:
            return existing
        log.info("%s: copying the matrices of the shard", plan.results.shard(shard.shard))
        attempt = receipts.count_starts(plan.results.starts(shard.shard)) + 1
        slabs = min(plan_memory.COPY_SLABS, slabs)
        with self._at_work(attempt):
            copy.materialize(plan, shard.shard, self._session.lane, slabs, self.watch)
        return copy.existing_copy(plan, shard)

    @contextmanager
    def _result_file(self, attempt: int) -> Iterator[BinaryIO]:
        """The file of the result, which gets its name where all in this context goes well."""
        results, shard, inputs = self._plan.results, self.shard, self._reading.inputs
        # Only an earlier attempt can have left something: else the folder need not be listed.
        with (
            commit(
                results.product(shard.shard), sweep=attempt > 1,
                receipt=results.receipt(shard.shard),
            ) as file,
            inputs.unchanged(),
            blame.input_file(self._plan, shard, inputs),
        ):  # fmt: skip
            yield file

    def _stream(
        self, batches: Batches, checks: ShardChecks, file: BinaryIO, on_read: Callable[[], None]
    ) -> Generator[None, None, StackWriter]:
        """Take slabs through the device into the file; the writer of the file."""
        if self._plan.problem.shared_right:
            self._reading.share_right(batches)
        session, sink, left = self._session, batches.sink, 2
        shape = sink.shape(self.shard.run)
        slabs = session.slabs_to_write(self.shard)
        try:
            with (
                StackWriter(file, shape, np.dtype(sink.dtype)) as writer,
                closing(Drain(session.lane, writer, slabs, self.watch)) as drain,
            ):
                stream = Stream(session.lane, self.shard, self._reading, batches, checks, drain,
                                self.watch)  # fmt: skip
                for _ in stream.run(on_read):
                    left -= 1
                    yield
        except BaseException:
            if left:
                session.forget_batches()
            raise
        return writer

    def _prove(self, checks: ShardChecks) -> dict[str, Any]:
        """Compare what was read with its receipt, and what was multiplied with what was read."""
        right = self._reading.right_checksum
        # The checksum first: a copy that is damaged is no fault of the device.
        with np.errstate(all="ignore"):
            return {
                "input_checksum": self._reading.checked_sum(),
                "right_checksum": right and right.hexdigest(),
                "proof": checks.operation.proof,
                **cross_check.compare(self._plan, self.shard, self._reading, checks),
                "compute": checks.operation.compute,
            }

    def _file_facts(self, batches: Batches, writer: StackWriter, checksum: str) -> Any:
        shard, nodes = self.shard, None
        if self._plan.settings.keep == "sum":
            nodes = tuple(cover(shard.start, shard.stop))
        return receipts.describe_file(
            self._plan.results.product(shard.shard), writer.shape, batches.sink.dtype,
            checksum, writer.row_bytes, writer.piece_bytes, nodes,
        )  # fmt: skip

    def _write_receipt(self, attempt: int, facts: dict[str, Any], identity: os.stat_result) -> None:
        plan, shard, session, watch = self._plan, self.shard, self._session, self.watch
        finished = watch.end()
        receipt = {
            "shard": shard.shard,
            "start": shard.start,
            "stop": shard.stop,
            "fingerprint": shard.fingerprint,
            "keep": plan.settings.keep,
            "backend": session.xp.__name__,
            "device": session.device,
            "attempt": attempt,
            **facts,
            "held": watch.held(finished),
            **receipts.describe_origin("multiply", watch.unix, session.versions, finished),
        }
        path, product = plan.results.receipt(shard.shard), plan.results.product(shard.shard)
        receipts.write_for(path, receipt, product, identity)

    def _at_work(self, attempt: int) -> live.AtWork:
        """Say from now on how far the shard is."""
        results, shard, watch = self._plan.results, self.shard, self.watch
        device = self._session.device
        facts = {
            "shard": shard.shard,
            "attempt": attempt,
            "started": watch.unix,
            "node": host.node(),
            "process": os.getpid(),
            "job": host.job_number(),
            "device": {key: device.get(key) for key in ("name", "uuid")},
            "matrices": shard.stop - shard.start,
        }
        path = results.live / f"{shard.shard}.json"
        return live.AtWork(path, facts, lambda: watch.matrices)
