"""The batches of a shard through the device: one is filled, one multiplied, one drained at once."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from shardwise.files.checksum import raw_bytes
from shardwise.multiply.batch import Batches, ShardChecks
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
        self, lane: Lane, shard: Shard, reading: Reading, batches: Batches, checks: ShardChecks,
        drain: Drain, watch: Stopwatch,
    ) -> None:  # fmt: skip
        self._lane, self._shard, self._watch = lane, shard, watch
        self._reading, self._batches, self._drain = reading, batches, drain
        self._checks = checks
        self._drained: deque[Future[None]] = deque()

    def run(self, on_read: Callable[[], None]) -> Iterator[None]:
        """Compute all batches; `on_read` is called once the last byte was read.

        Yields twice, as `ShardJob.steps` has it.
        """
        start, stop, size = self._shard.start, self._shard.stop, self._batches.matrices
        last = time.monotonic()
        with ThreadPoolExecutor(1, "drain") as pool:
            try:
                with self._lane.work():
                    self._batches.sink.begin()
                for first in range(start, stop, size):
                    count = min(size, stop - first)
                    self._multiply(first, count, on_read, pool)
                    if time.monotonic() - last > _PROGRESS_SECONDS:
                        log.info("%d of %d matrices", first - start, stop - start)
                        last = time.monotonic()
                yield
                with self._lane.work() as began, np.errstate(all="ignore"):
                    total = self._batches.sink.result()
                mark = self._lane.worked(began)
                yield
                self._lane.bind()
                self._finish(total, mark)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _multiply(
        self, first: int, count: int, on_read: Callable[[], None], pool: ThreadPoolExecutor
    ) -> None:
        """Fill and multiply a batch, in the memory of the oldest one that is under way."""
        batches = self._batches
        before = batches.under_way.popleft() if batches.full else None
        if before:
            self._lane.reuse(before[0])
        self._reading.fill(batches.inputs(count))
        if first + count == self._shard.stop:
            on_read()
        if before:  # perhaps of the shard before, whose failure is not this one's
            wait([before[1]])
        while self._drained and self._drained[0].done():
            self._drained.popleft().result()
        # Overflow is found and named by the checks of a batch.
        with self._lane.work() as began, np.errstate(all="ignore"):
            report, products = batches.work(first, count)
        mark = self._lane.worked(began)
        self._drained.append(pool.submit(self._drain_batch, report, products, mark))
        batches.under_way.append((mark, self._drained[-1]))

    def _drain_batch(self, report: BatchReport, products: Any, mark: Mark) -> None:
        """Write the products of a batch, and refuse it where its report says so."""
        self._lane.bind()
        self._lane.follow(mark)
        if products is not None:
            self._drain.write(products)
        self._watch.note("compute", mark.wait())
        self._checks.examine(report.fetched(self._lane))
        self._watch.matrices += report.count

    def _finish(self, total: Any, mark: Mark) -> None:
        """Write the sum where there is one, and wait until all is written and noted."""
        for future in self._drained:
            future.result()
        self._lane.follow(mark)
        for node in total(self._lane):
            self._drain.write(raw_bytes(node))
        self._watch.note("compute", mark.wait())
        self._drain.finish()
        self._reading.release()
