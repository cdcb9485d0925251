"""Products of matrices too large for a device: panels of rows stream past a panel of the product.

A panel is a run of whole rows, so it is read as a contiguous range of bytes. A panel of the product
stays where it is; beside it stays the panel of A with the same rows; and all panels of the other
factor go by, always in the same order:

===========  =============================================
``A @ A``    ``C[I, :] += A[I, l] @ A[l, :]`` for all l
``A @ B``    ``C[I, :] += A[I, l] @ B[l, :]`` for all l
``A.T @ A``  ``C[I, :] += A[l, I].T @ A[l, :]`` for all l
``A @ A.T``  ``C[I, l] = A[I, :] @ A[l, :].T`` for all l
===========  =============================================

The heights of panels follow from dtype and shapes alone (`sizes.panel_rows`), so no bit depends on
free memory or on the number of shards. Under ``keep: sum`` panels are the outer loop and matrices
the inner one: the sum of one panel is held, and it is always one of planes (bins.py), whatever
``reproducible`` says.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from shardwise import sizes
from shardwise.arrays import StackWriter, raw_bytes
from shardwise.batches import Report, Worker, check_int64, does_not_fit
from shardwise.bins import BinnedSum
from shardwise.disk import ExtentReader
from shardwise.pipeline import Drain, Feed, Stopwatch, Taker, Takers
from shardwise.plan import Shard
from shardwise.proof import PanelChecker
from shardwise.sources import StackReader

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0
_LOOK_AT = {True: 2**16, False: 2**22}
"""Elements whose moduli are taken at once: on the CPU they stay in a cache."""


@dataclass(frozen=True)
class Step:
    """One panel of the product of one matrix.

    Attributes
    ----------
    number
        How many steps were before.
    matrix, panel
        Index in the whole stack, and rows of the product.
    new
        Whether the factor that streams by is another than in the step before.
    fresh
        Whether that factor has to be read: it is new, or the device does not hold all of it.
    """

    number: int
    matrix: int
    panel: slice
    new: bool
    fresh: bool


def panels(rows: int, height: int) -> list[slice]:
    """The panels of a matrix, from the first row to the last."""
    return [slice(low, min(low + height, rows)) for low in range(0, rows, height)]


class TileWorker(Worker):
    """The panels of the products of one shard, and the memory they lie in.

    Parameters, attributes and errors are those of `Worker`.
    """

    def _allocate(self, count: int) -> None:
        problem, lane = self._problem, self._lane
        self._count, self.two = count, problem.right is not None
        self._own_rows, self._other_rows = sizes.panel_rows(problem)
        self._others = panels(sizes.streamed(problem)[0], self._other_rows)
        self._panels = panels(problem.product_shape[0], self._own_rows)
        keep, cuda = self._plan.settings["keep"], lane.xp is not np
        self.needed = sizes.panel_bytes(problem, keep, cuda)
        try:
            self._take_panels()
        except lane.memory_errors as error:
            raise does_not_fit(lane, "a product in panels", self.needed) from error

    def _take_panels(self) -> None:
        problem, zeros = self._problem, self._lane.zeros
        columns, width = sizes.streamed(problem)[1], problem.product_shape[1]
        shape = (self._other_rows, columns)
        self._streamed = [zeros(shape, problem.dtype) for _ in range(sizes.PANELS)]
        self._used: list[Any] = [None] * sizes.PANELS
        self._held: list[Any] = []
        self._held_used: list[Any] = [None] * sizes.PANELS
        if problem.product != "A.T @ A":
            shape = (self._own_rows, problem.left[1])
            self._held = [zeros(shape, problem.dtype) for _ in range(sizes.PANELS)]
        shape = (self._own_rows, width)
        outs = 1 if self._sums else sizes.PANELS
        self._outs = [zeros(shape, problem.product_dtype) for _ in range(outs)]
        self._accumulator = None
        if "int" not in problem.dtype and problem.compute_dtype != problem.product_dtype:
            self._accumulator = zeros(shape, problem.compute_dtype)
        if self.proof:
            with self._lane.work():
                self._checker = PanelChecker(
                    self._lane.xp, problem.product, problem.left, problem.right, problem.dtype,
                    self.compute, self._seed,
                )  # fmt: skip
        self._try_arithmetic()

    def _trial(self) -> tuple[Callable[[], Any], list[Any]]:
        """The first panels of a product, as `_meet` multiplies them."""
        step, rows = Step(0, 0, self._panels[0], new=False, fresh=False), self._others[0]
        panel = self._streamed[0][: rows.stop - rows.start]

        def multiply() -> Any:
            self._meet(step, 0, rows, panel)
            return self._sum_of(step)[None]

        return multiply, [panel, *self._held[:1]]

    def part(self, step: Step) -> Fraction:
        """What a step does of a product."""
        return Fraction(step.panel.stop - step.panel.start, self._problem.product_shape[0])

    # What comes when.

    def steps(self, shard: Shard) -> Iterator[Step]:
        """All panels of all products of a shard, in the order in which they are computed."""
        matrices = range(shard.start, shard.stop)
        order = (
            ((i, panel) for panel in self._panels for i in matrices)
            if self._sums
            else ((i, panel) for i in matrices for panel in self._panels)
        )
        before = None
        for number, (i, panel) in enumerate(order):
            key = 0 if self._problem.shared_right else i
            new = key != before
            yield Step(number, i, panel, new, new or len(self._others) > sizes.PANELS)
            before = key

    def runs(self, shard: Shard) -> dict[str, Iterator[tuple[int, int]]]:
        """Ranges of bytes of each stream, in the order in which they are wanted.

        ``whole`` is the shard's own bytes, once, for the checksum; ``again`` what streams by
        otherwise, of A or of B; ``held`` panels of A that stay.
        """
        problem = self._problem
        size = problem.matrix_bytes
        row = size // problem.left[0]
        other, shared = problem.right_bytes or size, problem.shared_right
        starts = ((0 if shared else s.matrix) * other for s in self._passes(shard))
        held = (
            (s.matrix * size + s.panel.start * row, s.matrix * size + s.panel.stop * row)
            for s in self.steps(shard)
            if self._held and not self._held_first(s)
        )
        return {
            "whole": iter([(shard.start * size, shard.stop * size)]),
            "again": ((start, start + other) for start in starts),
            "held": held,
        }

    def _passes(self, shard: Shard) -> Iterator[Step]:
        """The steps that read the other factor, but not as a part of the shard's own bytes."""
        return (s for s in self.steps(shard) if s.fresh and not self._streams_first(s))

    def _streams_first(self, step: Step) -> bool:
        """Whether the factor that streams by is A, for the first time."""
        return not self.two and step.panel.start == 0

    def _held_first(self, step: Step) -> bool:
        """Whether the panel that stays is read for the first time, and in order: that of A @ B."""
        return self.two and (not self._sums or step.panel.start == 0)

    # Work.

    def load_held(self, step: Step, feeds: dict[str, Feed]) -> None:
        """Bring the panel of A that stays, on the upload track."""
        if not self._held:
            return
        target, used = self._held_panel(step), self._held_used[step.number % sizes.PANELS]
        if used is not None:
            self._lane.reuse(used)
        first = self._held_first(step)
        feeds["whole" if first else "held"].fill(raw_bytes(target))
        if first and self._sums:  # the next of its panels are not wanted before another round
            feeds["whole"].skip(self._problem.matrix_bytes - target.nbytes)

    def multiply(self, step: Step, feeds: dict[str, Feed]) -> tuple[Report, list[Any]]:
        """Compute a panel of a product, on the work track, while panels stream by.

        Returns
        -------
        report
            What to look at when the work is done.
        marks
            Of the parts of the work.
        """
        lane, marks, report = self._lane, [], Report(step.matrix, 1)
        feed = feeds["whole" if self._streams_first(step) else "again"]
        for i, rows in enumerate(self._others):
            panel = self._streamed[i % sizes.PANELS][: rows.stop - rows.start]
            if step.fresh:
                if self._used[i % sizes.PANELS] is not None:
                    lane.reuse(self._used[i % sizes.PANELS])
                feed.fill(raw_bytes(panel))
            began = time.perf_counter()
            with lane.work():
                self._meet(step, i, rows, panel)
                if i == len(self._others) - 1:
                    self._finish(step, report)
            self._used[i % sizes.PANELS] = mark = lane.worked(began)
            marks.append(mark)
        self._held_used[step.number % sizes.PANELS] = mark
        return report, marks

    def _products(self, step: Step) -> Any:
        """A panel of the product, rounded to its own dtype."""
        return self._outs[step.number % len(self._outs)][: step.panel.stop - step.panel.start]

    def _sum_of(self, step: Step) -> Any:
        """What the panel is accumulated in."""
        if self._accumulator is None:
            return self._products(step)
        return self._accumulator[: step.panel.stop - step.panel.start]

    def _held_panel(self, step: Step) -> Any:
        if not self._held:
            return None
        return self._held[step.number % sizes.PANELS][: step.panel.stop - step.panel.start]

    def _meet(self, step: Step, i: int, rows: slice, panel: Any) -> None:
        """Add to the panel of the product what the panel that streams by gives to it."""
        if step.new:
            self._look_at(i, rows, panel)
        product, held, out = self._problem.product, self._held_panel(step), self._sum_of(step)
        if product == "A @ A.T":
            self._kernel.multiply_add(held, panel.T, out[:, rows], False)
            return
        left = panel[:, step.panel].T if product == "A.T @ A" else held[:, rows]
        self._kernel.multiply_add(left, panel, out, i > 0)

    def _look_at(self, i: int, rows: slice, panel: Any) -> None:
        """Find the largest modulus of the factor that streams by, and what the proof needs."""
        top = self._top(panel)
        self._other_top = top if i == 0 else self._larger(self._other_top, top)
        if self._checker:
            if i == 0:
                self._checker.begin()
            self._checker.take(rows, panel)

    def _finish(self, step: Step, report: Report) -> None:
        """Round a panel of the product, look at it, prove it, and add it to the sum."""
        held, out = self._held_panel(step), self._products(step)
        if self._accumulator is not None:
            out[...] = self._sum_of(step)
        left = self._top(held) if self.two else self._other_top
        if out.dtype.kind == "i":
            if self.compute == "int64":
                inner = self._problem.factor_shapes[0][1]
                check_int64(inner, int(left), int(self._other_top), step.matrix)
        else:
            report.left, report.right = left, self._other_top if self.two else None
            report.product = self._top(out)
        if self._checker:
            report.ratio = self._checker.check(step.panel, held, out)
            report.forms = self._checker.forms
        if self._sums:
            self._add(step, out)

    def _add(self, step: Step, out: Any) -> None:
        if step.number % self._count == 0:
            self._total = self._planes = None  # before the next is made
            self._total = BinnedSum(self._lane.xp, out.shape, self._problem.product_dtype)
        self._total.add(out[None])
        if (step.number + 1) % self._count == 0:
            self._planes = self._total.planes()

    def _top(self, panel: Any) -> Any:
        """The largest modulus of a panel, an array ``(1,)``; of integers an exact number."""
        xp, step = self._lane.xp, max(1, _LOOK_AT[self._lane.xp is np] // panel.shape[1])
        bands = [panel[low : low + step] for low in range(0, len(panel), step)]
        if panel.dtype.kind in "iu":
            if self.compute != "int64":
                return 0  # none of them is too large
            return max(max(int(band.max()), -int(band.min())) for band in bands)
        if panel.dtype.kind == "c":
            bands = [band.view(f"f{panel.itemsize // 2}") for band in bands]
        return xp.stack([xp.abs(band).max() for band in bands]).max()[None]

    def _larger(self, one: Any, other: Any) -> Any:
        return max(one, other) if isinstance(one, int) else self._lane.xp.maximum(one, other)

    # What is written.

    def may_overlap(self, step: Step) -> int:
        """Steps before this one that may still be drained when its work begins."""
        begins_sum = self._sums and step.number % self._count == 0
        return 0 if begins_sum else sizes.PANELS - 1

    def results(self, step: Step, shard: Shard) -> list[tuple[int, Any]]:
        """What a step has made, as bytes and their place among the elements of the file."""
        rows = self._problem.product_shape[0]
        if not self._sums:
            out = raw_bytes(self._products(step))
            row = out.nbytes // (step.panel.stop - step.panel.start)
            return [(((step.matrix - shard.start) * rows + step.panel.start) * row, out)]
        if (step.number + 1) % self._count:
            return []
        planes = [raw_bytes(plane) for plane in self._planes]
        row = planes[0].nbytes // (step.panel.stop - step.panel.start)
        return [((i * rows + step.panel.start) * row, plane) for i, plane in enumerate(planes)]


class Scatter(Drain):
    """Runs of bytes on their way into a file, each to a place of its own.

    They are cut where slabs of the file begin, and lie in a slab at their place: so whole pages lie
    right to be written around the page cache.
    """

    def write_at(self, offset: int, source: Any) -> None:
        """Write bytes to their place; they may be overwritten when this returns."""
        at, last = 0, None
        while at < source.nbytes:
            slab = self._slab_to_fill()
            low = (offset + at) % slab.nbytes
            part = slab[low : low + source.nbytes - at]
            last = self._lane.download(source[at : at + part.nbytes], part)
            self._submit(part, [(last, part.nbytes)], offset + at)
            at += part.nbytes
        if last is not None:
            last.wait()


class _Once:
    """Hands the bytes of a stream on when they come first, however often they stream by."""

    def __init__(self, taker: Taker) -> None:
        self._taker, self._lock = taker, threading.Lock()
        self._taken: set[int] = set()

    def update(self, offset: int, views: Iterable[np.ndarray]) -> None:
        """Take bytes; a stream is always cut at the same places."""
        with self._lock:
            known = offset in self._taken
            self._taken.add(offset)
        if not known:
            self._taker.update(offset, views)


Readers = tuple[Callable[[], StackReader], Callable[[], StackReader]]


def stream(
    shard: Shard, lane: Any, worker: TileWorker, readers: Readers, files: ExtentReader,
    writer: StackWriter, slabs: tuple[int, int], takers: tuple[Takers, Takers], watch: Stopwatch,
    read: Callable[[], None],
) -> None:  # fmt: skip
    """Compute all products of a shard in panels, or their sum, into its file.

    Parameters
    ----------
    readers
        Makers of the readers of A and of B; a stream has one of its own.
    slabs
        To read into, for each stream, and to write from.
    takers
        Take the bytes of A and of B, each once.
    read
        Called when all has been read, and the slabs to read into are free.

    Raises
    ------
    InputError, IntegrityError
        As `Worker.examine`.
    TryAgain
        Where memory is short.
    """
    try:
        with ExitStack() as stack:
            feeds = {}
            for name, runs in worker.runs(shard).items():
                right = name == "again" and worker.two
                reader, own = readers[right], takers[0] if name == "whole" else {}
                if right:
                    own = {what: _Once(taker) for what, taker in takers[1].items()}
                feed = Feed(lane, reader(), files, runs, sizes.SLAB_BYTES, slabs[0], own, watch)
                feeds[name] = stack.enter_context(closing(feed))
                feed.start()
            drain = stack.enter_context(closing(Scatter(lane, writer, slabs[1], watch)))
            _run(shard, lane, worker, feeds, drain, watch, read)
    except lane.memory_errors as error:
        raise does_not_fit(lane, "a product in panels", worker.needed) from error


def _run(
    shard: Shard, lane: Any, worker: TileWorker, feeds: dict[str, Feed], drain: Scatter,
    watch: Stopwatch, read: Callable[[], None],
) -> None:  # fmt: skip
    """All steps of a shard: one panel is computed while the one before is drained."""
    drained: deque[Future] = deque()
    last = time.monotonic()
    with ThreadPoolExecutor(1, "drain") as pool:
        try:
            for step in worker.steps(shard):
                worker.load_held(step, feeds)
                while len(drained) > worker.may_overlap(step):
                    watch.timed("waited_for_batches", drained.popleft().result)
                report, marks = worker.multiply(step, feeds)
                results = worker.results(step, shard)
                drained.append(
                    pool.submit(
                        _drain_panel, lane, worker, drain, watch, step, results, report, marks
                    )
                )
                if time.monotonic() - last > _PROGRESS_SECONDS:
                    log.info("matrix %d, rows from %d on", step.matrix, step.panel.start)
                    last = time.monotonic()
            for feed in feeds.values():
                feed.release()
            read()
            for future in drained:
                watch.timed("waited_for_batches", future.result)
            watch.timed("waited_for_writes", drain.finish)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _drain_panel(
    lane: Any, worker: TileWorker, drain: Scatter, watch: Stopwatch, step: Step,
    results: list[tuple[int, Any]], report: Report, marks: list[Any],
) -> None:  # fmt: skip
    """Write what a step has made, and refuse it where its report says so."""
    lane.bind()
    lane.follow(marks[-1])
    for offset, source in results:
        drain.write_at(offset, source)
    part = worker.part(step)
    for i, mark in enumerate(marks):
        watch.note("multiply", mark.wait(), 0 if i else int(worker.flop * part))
    worker.examine(report.fetched(lane))
    watch.matrices += float(part)
