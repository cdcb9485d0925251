"""A device that computes one shard after another."""

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from shardwise import errors
from shardwise import host as shardwise_host
from shardwise.devices import choose, quarantine
from shardwise.devices.gauge import Gauge
from shardwise.devices.telemetry import Recorder
from shardwise.errors import (
    BadMatrix,
    DeviceFailed,
    Disproven,
    InputError,
    IntegrityError,
    Misled,
    Quarantined,
    ShardwiseError,
    WrongInput,
    WrongProduct,
)
from shardwise.files import pieces
from shardwise.files.checksum import PieceChecksum, raw_bytes
from shardwise.files.commit import commit
from shardwise.files.direct import ExtentReader
from shardwise.files.npy import StackWriter
from shardwise.files.paths import for_bash
from shardwise.multiply import backend as backends
from shardwise.multiply import batch, live
from shardwise.multiply.batch import Batches
from shardwise.multiply.copy import factors_digest, materialize, reference_of
from shardwise.multiply.lanes import CudaLane, HostLane, Lane, Mark
from shardwise.multiply.operation import BatchReport, adds_in_gemm
from shardwise.multiply.pipeline import Drain, Feed, Takers
from shardwise.numerics import end_to_end
from shardwise.numerics import reference as references
from shardwise.plan import memory as plan_memory
from shardwise.plan import nonfinite
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.plan.stack import StackReader
from shardwise.records import account, judge, receipts
from shardwise.records.timeline import Stopwatch

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0
_SUSPECT = (
    "Suspect the device, or the memory of its node: run snakemake again, elsewhere if you can"
)


@dataclass
class Reading:
    """A shard whose bytes are on their way, see :meth:`Session.begin`.

    Attributes
    ----------
    copy
        What the receipt of their copy says of its matrices; None where they are not copied.
    slabs
        To read into, for each factor, and to write from.
    feeds
        The streams of A, and of B where there is one B a matrix.
    reference
        The CPU's own number of some matrices, where no copy has it of all.
    open
        What is to be closed in the end.
    watch
        Begun with it, before a copy that has to be made.
    inputs
        The input files that are read for it.
    right_checksum
        Of the B's that the shard is multiplied with, or of the one that serves all matrices; None
        where there is no B.
    """

    shard: Shard
    copy: "_Copy | None"
    slabs: tuple[int, int]
    checksum: PieceChecksum
    files: ExtentReader
    open: ExitStack
    watch: Stopwatch
    inputs: InputFiles
    right_checksum: PieceChecksum | None
    reference: references.Reference | None = None
    feeds: list[Feed] = field(default_factory=list)

    @property
    def takers(self) -> Takers:
        """Who takes the bytes of A on their way."""
        if self.reference is None:
            return {"checksum": self.checksum}
        return {"checksum": self.checksum, "witness": self.reference}

    @property
    def right_takers(self) -> Takers:
        """Who takes the bytes of B on their way."""
        return {"checksum": self.right_checksum} if self.right_checksum else {}

    def release(self) -> None:
        """Give the slabs back, once all bytes were read and copied; the next shard can use them."""
        for feed in self.feeds:
            feed.release()


class Session:
    """A device of this process, and shards through it, one after the other.

    Context, streams, compiled kernels and slabs stay from shard to shard; what is computed never
    depends on an earlier shard.

    Parameters
    ----------
    needed
        Bytes of device memory that the largest of the shards is going to take.
    memory
        Host bytes that the task may take, or None for what the plan says.
    wait
        Seconds to wait for a free device while no lease of one changes hands, or None for what
        :func:`choose.wait_seconds` says.
    choice
        Which device to look at first, where this is one of several workers.

    Raises
    ------
    InputError, TryAgain
        As :func:`load_backend`.
    """

    def __init__(
        self, plan: Plan, needed: int, memory: int | None = None, wait: float | None = None,
        choice: choose.Choice | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._memory = plan, memory
        # First of all: a task that waits for a device must not hold memory meanwhile.
        barred = partial(quarantine.barred, plan.results)
        backend = plan.settings.backend
        try:
            self._xp, self.device = backends.load_backend(backend, needed, wait, choice, barred)
        except Quarantined:
            raise
        except DeviceFailed as error:
            self.device = {"uuid": choose.own()}
            raise self._blamed(error, None) from error
        with self._translated():
            self._lane = HostLane() if self._xp is np else CudaLane(self._xp)
            self._versions = {} if self._xp is np else choose.versions(self._xp)
            batch.refuse_too_large(plan, self._xp is not np, self._lane.total())
        self._gauge: Gauge | None = None
        if self._xp is not np:
            self._gauge = Gauge(self.device["uuid"])
            # It takes 70 ms: kernels are compiled, and the first slabs read, meanwhile.
            threading.Thread(target=self._gauge.open, name="gauge", daemon=True).start()

    def begin(self, shard_id: str) -> Reading:
        """Begin to read a shard; a copy of it that is missing is made first.

        Another thread may still finish the shard before, once that has released its slabs.

        Raises
        ------
        IntegrityError
            Where an input, or its copy, is not what was planned.
        TryAgain
            Where there is no room for the copy.
        """
        with self._translated(shard_id), ExitStack() as stack:
            self._lane.bind()
            reading = self._opened(self._plan.shard(shard_id), stack)
            reading.open = stack.pop_all()
        return reading

    def _opened(self, shard: Shard, stack: ExitStack) -> Reading:
        plan, cuda, watch = self._plan, self._xp is not np, Stopwatch()
        self._lane.set_clock()
        count, keep = shard.stop - shard.start, plan.settings.keep
        slabs = plan_memory.slabs_within(
            plan.problem, count, keep, cuda, self._memory or shard.memory
        )
        copying = partial(self._at_work, shard, watch)
        copy = _copied(
            plan, shard, self._lane, min(plan_memory.COPY_SLABS, slabs[0]), watch, copying
        )
        checksum = PieceChecksum(shard.bytes, *plan_memory.SHARD_PIECES)
        inputs = InputFiles()
        files = stack.enter_context(ExtentReader(opened=inputs.compare))
        right = _right_checksum(plan, shard)
        reading = Reading(shard, copy, slabs, checksum, files, stack, watch, inputs, right)
        known = copy is not None and copy.reference is not None
        if not known and not adds_in_gemm(plan):  # there single matrices have no numbers
            reading.reference = reference_of(plan, shard, references.sample_every(count))
        _start_feeds(plan, reading, self._lane)
        return reading

    def finish(self, reading: Reading, read: Callable[[], None] = lambda: None) -> None:
        """Compute what was begun, and commit it with a receipt.

        Parameters
        ----------
        read
            Called once the last byte of the shard was read and is on its way to the device.

        Raises
        ------
        InputError
            NaN or Inf under ``nonfinite: error``, overflow, or a config that does not fit the
            machine.
        IntegrityError
            An input that is not the planned one, or a product that fails its proof.
        TryAgain
            The device is busy or out of memory; of its class `DeviceFailed` where it is lost, and
            of that one's class `Quarantined` where it is put into quarantine. So is a product that
            fails its proof on a GPU: another one may do better. `Misled` where a GPU has multiplied
            other matrices than were read; on the CPU that is an IntegrityError, `WrongInput`.
        """
        shard, watch = reading.shard, reading.watch
        attempt = receipts.note_start(self._plan.results.starts(shard.shard))
        with self._at_work(shard, watch, attempt, self._gauge) as beside:
            with self._translated(shard.shard), reading.open:
                try:
                    # Overflow is found and named by the checks of a batch.
                    with np.errstate(all="ignore"):
                        body, own = _compute(
                            self._plan, reading, self._lane, attempt, read, beside.release
                        )
                except BaseException:
                    self._lane.settle()  # before the next shard takes memory that copies write to
                    raise
            body["telemetry"] = beside.telemetry()
            self._write_receipt(reading, attempt, body, own)

    def _at_work(
        self, shard: Shard, watch: Stopwatch, attempt: int | None = None, gauge: Gauge | None = None
    ) -> live.AtWork:
        """Say from now on how far the shard is, and what its device does where that is asked."""
        results, name = self._plan.results, shard.shard
        if attempt is None:
            attempt = receipts.starts(results.starts(name)) + 1
        facts = {
            "shard": name,
            "attempt": attempt,
            "started": watch.timeline.unix,
            "node": shardwise_host.node(),
            "process": os.getpid(),
            "job": shardwise_host.job_number(),
            "device": {key: self.device.get(key) for key in ("name", "uuid")},
            "matrices": shard.stop - shard.start,
        }
        recorder = Recorder(gauge, watch.timeline.began) if gauge else None
        path, table = results.live / f"{name}.json", results.telemetry(name)
        return live.AtWork(path, facts, lambda: watch.matrices, recorder, table)

    @contextmanager
    def _translated(self, shard: str | None = None) -> Iterator[None]:
        """Name the device where it fails, and put it into quarantine where the fault is its own."""
        try:
            yield
        except WrongInput as error:  # of the copy, the host or the device: that one is not blamed
            if self.device.get("uuid") is None:
                raise
            raise Misled(str(error)) from error
        except (WrongProduct, DeviceFailed, *errors.device_errors(self._xp)) as error:
            raise self._blamed(error, shard) from error
        except OSError as error:
            if error.errno != errno.EBADF or not self._plan.problem.result:
                raise
            raise InputError(
                f"product: your function {self._plan.problem.product} closed files that are not "
                f"its own ({error}); nothing was committed"
            ) from error

    def _blamed(self, error: Exception, shard: str | None) -> ShardwiseError:
        """What an error that may be the device's is told as."""
        uuid = self.device.get("uuid")
        ours = isinstance(error, ShardwiseError)
        said = f"{error}" if ours else f"device {uuid}: {error}; nothing was written"
        why = choose.fault(error, uuid)
        if why is not None:
            entry = quarantine.note(self._plan.results, uuid, why, shard)
        disproven = isinstance(error, WrongProduct)
        if why is None or uuid is None:  # a host has no other CPU to go to
            return WrongProduct(said) if disproven else DeviceFailed(said)
        return (Disproven if disproven else Quarantined)(
            f"{said}. Now in quarantine for these results: {entry}. Another device has to compute "
            "this shard; to take this one back once it is mended: "
            f"{quarantine.clearing(self._plan.results, uuid)}"
        )

    def _write_receipt(
        self, reading: Reading, attempt: int, body: dict[str, Any], own: os.stat_result
    ) -> None:
        plan, shard, xp, watch = self._plan, reading.shard, self._xp, reading.watch
        finished = watch.timeline.end()
        receipts.write_for(
            plan.results.receipt(shard.shard),
            {
                "shard": shard.shard,
                "start": shard.start,
                "stop": shard.stop,
                "fingerprint": shard.fingerprint,
                "keep": plan.settings.keep,
                "backend": xp.__name__,
                "device": self.device,
                "attempt": attempt,
                **body,
                "stages": {stage: round(seconds, 4) for stage, seconds in watch.seconds.items()},
                "timeline": watch.timeline.told(finished),
                **receipts.provenance("multiply", watch.timeline.unix, self._versions, finished),
            },
            plan.results.product(shard.shard),
            own,
        )


def _compute(
    plan: Plan, reading: Reading, lane: Lane, attempt: int, read: Callable[[], None],
    streamed: Callable[[], None],
) -> tuple[dict[str, Any], os.stat_result]:  # fmt: skip
    """Stream a shard through the pipeline into its file; the receipt's account of it, and facts."""
    shard, watch = reading.shard, reading.watch
    count = shard.stop - shard.start
    every = reading.reference.every if reading.reference else None
    batches = Batches(lane, plan, shard.start, count, every)
    path, sink = plan.results.product(shard.shard), batches.sink
    shape = sink.shape(count)
    # Only an earlier attempt can have left something: else the folder need not be listed.
    with (
        commit(path, sweep=attempt > 1, receipt=plan.results.receipt(shard.shard)) as file,
        reading.inputs.unchanged(),
        _explained(plan, reading),
    ):
        own = os.fstat(file.fileno())
        if plan.problem.shared_right:
            _share_right(plan, reading, batches)
        with ExitStack() as stack:
            writer = stack.enter_context(StackWriter(file, shape, np.dtype(sink.dtype)))
            drain = stack.enter_context(closing(Drain(lane, writer, reading.slabs[1], watch)))
            _stream(reading, lane, batches, drain, read)
        streamed()
        found = reading.checksum.hexdigest()
        _check_input(plan, shard, reading.copy, found)
        told = _witness(plan, reading, batches)
        product_checksum = writer.checksum()
    body = {
        "file": receipts.file_facts(
            path, shape, sink.dtype, product_checksum, writer.row_bytes, writer.piece_bytes
        ),
        "input_checksum": found,
        "right_checksum": reading.right_checksum and reading.right_checksum.hexdigest(),
        "proof": batches.operation.proof,
        **told,
        "compute": batches.operation.compute,
    }
    return body, own


@contextmanager
def _explained(plan: Plan, reading: Reading) -> Iterator[None]:
    """Say where in the user's own files the matrix lies that a batch is refused for.

    Raises
    ------
    InputError
        With file, row and column, and with what a correction computes again.
    IntegrityError
        Where these files are finite: their copy is damaged.
    WrongInput
        The same where there is no copy.
    """
    try:
        yield
    except BadMatrix as error:
        raise _with_place(plan, reading, error) from error


def _with_place(plan: Plan, reading: Reading, error: BadMatrix) -> ShardwiseError:
    key, start, stop = error.key, error.first, error.first + error.count
    where = nonfinite.files_of(plan, "right" if key == "right" else "input", start, stop)
    after = nonfinite.again(plan, key, start)
    if key == "product":
        return InputError(f"{error.what} ({where}); {error.cure}{after}")
    with suppress(OSError, IntegrityError):  # the files need not be there any more
        place = nonfinite.find(plan, key, start, stop, reading.inputs)
        if place is None:
            return _not_so_in_file(plan, reading.shard, error)
        where = str(place)
    return InputError(f"{error.what}: {where}; {error.cure}{after}")


def _not_so_in_file(plan: Plan, shard: Shard, error: BadMatrix) -> IntegrityError:
    if error.key == "input" and plan.settings.materialize:
        return IntegrityError(
            f"{plan.results.shard(shard.shard)}: is damaged: matrix {error.first} holds NaN or "
            f"Inf there, but none in the input; {_copy_again(plan, shard)}"
        )
    return WrongInput(
        f"{error.what}, but its file does not; nothing was written. {_SUSPECT}"
    )  # fmt: skip


def _share_right(plan: Plan, reading: Reading, batches: Batches) -> None:
    """Read the one B that serves all matrices, and bring it to the device."""
    stack, watch = _right_reader(plan, reading.inputs), reading.watch
    right = watch.timed("read", lambda: stack.read(0, 1)[0], plan.problem.right_bytes)
    raw = raw_bytes(right.astype(right.dtype.newbyteorder("<"), copy=False))
    watch.timed("checksum", lambda: reading.right_checksum.append(raw))
    watch.note("upload", batches.share(right), right.nbytes)


def _stream(
    reading: Reading, lane: Lane, batches: Batches, drain: Drain, read: Callable[[], None]
) -> None:
    """Run all batches of a shard: fill one while another is multiplied and a third drained."""
    shard, watch = reading.shard, reading.watch
    marks: deque[Mark] = deque()
    drained: deque[Future] = deque()
    last = time.monotonic()
    with ThreadPoolExecutor(1, "drain") as pool:
        try:
            for number, first in enumerate(range(shard.start, shard.stop, batches.matrices)):
                count = min(batches.matrices, shard.stop - first)
                if len(marks) == batches.under_way:
                    lane.reuse(marks.popleft())
                for feed, target in zip(reading.feeds, batches.inputs(number, count), strict=True):
                    feed.fill(target)
                if first + count == shard.stop:
                    read()
                if len(drained) == batches.under_way:
                    watch.timed("waited_for_batches", drained.popleft().result)
                began = time.perf_counter()
                with lane.work():
                    report, products = batches.work(number, first, count)
                mark = lane.worked(began)
                marks.append(mark)
                drained.append(
                    pool.submit(_drain_batch, lane, batches, drain, watch, report, products, mark)
                )
                if time.monotonic() - last > _PROGRESS_SECONDS:
                    done = first - shard.start
                    log.info("%d of %d matrices", done, shard.stop - shard.start)
                    last = time.monotonic()
            for future in drained:
                watch.timed("waited_for_batches", future.result)
            began = time.perf_counter()
            with lane.work():
                total = batches.sink.result()
            if total is not None:
                lane.follow(mark := lane.worked(began))
                drain.write(total)
                watch.note("multiply", mark.wait())
            watch.timed("waited_for_writes", drain.finish)
            for feed in reading.feeds:
                feed.settle()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _drain_batch(
    lane: Lane, batches: Batches, drain: Drain, watch: Stopwatch,
    report: BatchReport, products: Any, mark: Mark,
) -> None:  # fmt: skip
    """Write the products of a batch, and refuse it where its report says so."""
    lane.bind()
    lane.follow(mark)
    if products is not None:
        drain.write(products)
    watch.note("multiply", mark.wait(), batches.operation.flop * report.count)
    batches.examine(report.fetched(lane))
    watch.matrices += report.count


def _start_feeds(plan: Plan, reading: Reading, lane: Lane) -> None:
    """Open the streams of A, and of B where there is one B a matrix, and begin to read."""
    problem, shard = plan.problem, reading.shard
    left = _left_reader(plan, shard, reading.inputs)
    streams = [(left, problem.matrix_bytes, reading.takers)]
    if problem.right and not problem.shared_right:
        right = _right_reader(plan, reading.inputs)
        streams.append((right, problem.right_bytes, reading.right_takers))
    for reader, nbytes, own in streams:
        runs = [(shard.start * nbytes, shard.stop * nbytes)]
        feed = Feed(
            lane, reader, reading.files, runs, pieces.SLAB_BYTES, reading.slabs[0], own,
            reading.watch,
        )  # fmt: skip
        reading.feeds.append(reading.open.enter_context(closing(feed)))
        feed.start()


def _right_checksum(plan: Plan, shard: Shard) -> PieceChecksum | None:
    """The checksum, still without bytes, of what a shard needs of B; None where there is no B."""
    problem = plan.problem
    if problem.right is None:
        return None
    count = 1 if problem.shared_right else shard.stop - shard.start
    return PieceChecksum(count * problem.right_bytes, *plan_memory.SHARD_PIECES)


def _left_reader(plan: Plan, shard: Shard, inputs: InputFiles) -> StackReader:
    if plan.settings.materialize:
        path = str(plan.results.shard(shard.shard))
        sources = [Source(path, shard.start, shard.stop - shard.start, "")]
    else:
        sources = plan.sources
    return StackReader(sources, plan.problem.left, plan.dtype, inputs)  # type: ignore[arg-type]


def _right_reader(plan: Plan, inputs: InputFiles) -> StackReader:
    sources = list(plan.facts.right_sources)
    return StackReader(sources, plan.problem.right, plan.dtype, inputs)  # type: ignore[arg-type]


def _check_input(plan: Plan, shard: Shard, copy: "_Copy | None", found: str) -> None:
    if copy is not None and copy.checksum != found:
        raise IntegrityError(
            f"{plan.results.shard(shard.shard)}: is damaged: its checksum differs from its "
            f"receipt; {_copy_again(plan, shard)}"
        )


def _copy_again(plan: Plan, shard: Shard) -> str:
    receipt = for_bash(plan.results.shard_receipt(shard.shard))
    return f"rm {receipt}, then snakemake as before"


def _witness(plan: Plan, reading: Reading, batches: Batches) -> dict[str, Any]:
    """What the receipt says of the end-to-end proof, once the device's numbers fit the CPU's.

    Raises
    ------
    WrongInput
        Where they do not: the device has multiplied other matrices than were read.
    """
    own = batches.witness()
    if isinstance(own, str):
        return {"witness": None, "no_witness": own}
    if reading.reference is None and reading.copy is not None:
        host = _compared_with_copy(plan, reading, own, batches.tally.rows)
    else:
        host = _compared_by_sample(plan, reading, batches)
    return {"witness": replace(own, host=host).told()}


def _compared_with_copy(plan: Plan, reading: Reading, own: account.Account, rows: int) -> str:
    """Compare the shard's reference with that of its copy; for how many matrices that is."""
    shard, copied = reading.shard, reading.copy.reference
    if copied is None:
        return "none"
    in_turn = shard.stop - shard.start if adds_in_gemm(plan) else 0
    if end_to_end.differ(plan.problem, own.reference, copied, own.mass, rows, in_turn):
        raise WrongInput(
            f"shard {shard.shard}: the matrices that the device has multiplied are not those that "
            f"were copied; nothing was written. {_SUSPECT}. If this comes again on another device, "
            f"the copy or its receipt is wrong: {_copy_again(plan, shard)}"
        )
    return "all"


def _compared_by_sample(plan: Plan, reading: Reading, batches: Batches) -> str:
    """Compare the references of some matrices; for how many of how many that is."""
    if reading.reference is None:
        return "none"
    shard, found = reading.shard, batches.tally.references
    for i, own in found.items():
        mass = batches.tally.masses[i]
        values = reading.reference.values[i // reading.reference.every]
        if end_to_end.differ(plan.problem, own, values, mass, 1):
            raise WrongInput(
                f"shard {shard.shard}: the device has multiplied another matrix "
                f"{shard.start + i} than was read; nothing was written. {_SUSPECT}"
            )
    count, known = shard.stop - shard.start, reading.reference.finite()
    return "all" if known == count else f"{known} of {count}" if known else "none"


@dataclass(frozen=True)
class _Copy:
    """What the receipt of a shard's copy says of its matrices.

    Attributes
    ----------
    checksum
        Of their elements.
    reference
        The CPU's number of them all, taken while they were copied; None where there is none.
    """

    checksum: str
    reference: np.ndarray | None


def _copied(
    plan: Plan, shard: Shard, lane: Lane, slabs: int, watch: Stopwatch,
    copying: Callable[[], AbstractContextManager],
) -> _Copy | None:  # fmt: skip
    """What the receipt of the shard's copy says; None where nothing is copied.

    A copy that is not there, or not of this plan, is made first.
    """
    if not plan.settings.materialize:
        return None
    path = plan.results.shard(shard.shard)
    if (known := _known_copy(plan, shard)) is None or not path.exists():
        log.info("%s: copying the matrices of the shard", path)
        with copying():
            materialize(plan, shard.shard, lane, slabs, watch)
        return _known_copy(plan, shard)
    return known


def _known_copy(plan: Plan, shard: Shard) -> _Copy | None:
    """What the receipt of the shard's copy says; None where this plan has no whole one."""
    try:
        receipt = judge.check_copy(plan, shard.shard)
        reference = account.reference_in(receipt, plan.problem, factors_digest(plan))
    except (IntegrityError, KeyError, TypeError, ValueError):
        return None
    return _Copy(receipt.file.checksum, reference)
