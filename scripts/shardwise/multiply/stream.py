"""The batches of a shard through the device: one is filled, one multiplied, one drained at once."""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from shardwise.multiply.batch import Batches
from shardwise.multiply.lanes import Lane, Mark
from shardwise.multiply.operation import BatchReport
from shardwise.multiply.pipeline import Drain
from shardwise.multiply.reading import Reading
from shardwise.plan.plan import Shard
from shardwise.records.timeline import Stopwatch

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0


class Stream:
    """Takes all batches of a shard from their files through the device into its file."""

    def __init__(
        self, lane: Lane, shard: Shard, reading: Reading, batches: Batches, drain: Drain,
        watch: Stopwatch,
    ) -> None:  # fmt: skip
        self._lane, self._shard, self._watch = lane, shard, watch
        self._reading, self._batches, self._drain = reading, batches, drain
        self._marks: deque[Mark] = deque()
        self._drained: deque[Future] = deque()

    def run(self, on_read: Callable[[], None]) -> None:
        """Compute all batches; `on_read` is called once the last byte was read."""
        start, stop, size = self._shard.start, self._shard.stop, self._batches.matrices
        last = time.monotonic()
        with ThreadPoolExecutor(1, "drain") as pool:
            try:
                for number, first in enumerate(range(start, stop, size)):
                    count = min(size, stop - first)
                    self._fill(number, count)
                    if first + count == stop:
                        on_read()
                    self._multiply(number, first, count, pool)
                    if time.monotonic() - last > _PROGRESS_SECONDS:
                        log.info("%d of %d matrices", first - start, stop - start)
                        last = time.monotonic()
                self._finish()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _fill(self, number: int, count: int) -> None:
        if len(self._marks) == self._batches.under_way:
            self._lane.reuse(self._marks.popleft())
        self._reading.fill(self._batches.inputs(number, count))

    def _multiply(self, number: int, first: int, count: int, pool: ThreadPoolExecutor) -> None:
        if len(self._drained) == self._batches.under_way:
            self._watch.timed("waited_for_batches", self._drained.popleft().result)
        began = time.perf_counter()
        with self._lane.work():
            report, products = self._batches.work(number, first, count)
        mark = self._lane.worked(began)
        self._marks.append(mark)
        self._drained.append(pool.submit(self._drain_batch, report, products, mark))

    def _drain_batch(self, report: BatchReport, products: Any, mark: Mark) -> None:
        """Write the products of a batch, and refuse it where its report says so."""
        self._lane.bind()
        self._lane.follow(mark)
        if products is not None:
            self._drain.write(products)
        self._watch.note("multiply", mark.wait(), self._batches.operation.flop * report.count)
        self._batches.examine(report.fetched(self._lane))
        self._watch.matrices += report.count

    def _finish(self) -> None:
        """Write the sum where there is one, and wait until all is written and noted."""
        for future in self._drained:
            self._watch.timed("waited_for_batches", future.result)
        began = time.perf_counter()
        with self._lane.work():
            total = self._batches.sink.result()
        if total is not None:
            self._lane.follow(mark := self._lane.worked(began))
            self._drain.write_whole(total(self._lane))
            self._watch.note("multiply", mark.wait())
        self._watch.timed("waited_for_writes", self._drain.finish)
        self._reading.release()
