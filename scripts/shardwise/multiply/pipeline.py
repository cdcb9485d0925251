"""The pipeline: slabs of bytes from files into batches, and from batches into a file.

Reads, uploads, work, downloads and writes of different slabs go on side by side. The number of
slabs is fixed before, so memory is too: whoever is ahead waits for a slab.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from shardwise.files.direct import PAGE, ExtentReader
from shardwise.files.npy import StackWriter
from shardwise.multiply.lanes import Lane, Mark
from shardwise.plan import memory
from shardwise.plan.stack import SPARE_BYTES, StackReader
from shardwise.records.timeline import Stopwatch


class Taker(Protocol):
    """Whoever takes the bytes of a file on their way."""

    def update(self, offset: int, views: Iterable[np.ndarray]) -> None:
        """Take bytes that begin at byte ``offset`` and follow each other; from any thread."""


class Feed:
    """Bytes ``run`` of a stack on their way from files into batches, once `start` was called.

    Parameters
    ----------
    takers
        Take the bytes as they come; by what they do, as a stopwatch notes it.
    """

    def __init__(
        self, lane: Lane, stack: StackReader, files: ExtentReader, run: tuple[int, int],
        slab_bytes: int, slabs: int, takers: Mapping[str, Taker], watch: Stopwatch,
    ) -> None:  # fmt: skip
        self._lane, self._stack, self._files = lane, stack, files
        self._takers, self._watch = takers, watch
        self._begin, end = run
        self._pieces = ((at, min(at + slab_bytes, end)) for at in range(*run, slab_bytes))
        self._first = list(islice(self._pieces, slabs))
        self._pool = ThreadPoolExecutor(slabs, "slab")
        self._ahead: deque[tuple[np.ndarray, Future]] = deque()
        self._views: list[np.ndarray] = []
        self._marks: list[tuple[Mark, int]] = []

    def start(self) -> None:
        """Take the memory of the slabs and begin to read; from here on `close` is needed."""
        size = max((high - low for low, high in self._first), default=0)
        for piece in self._first:
            self._read_ahead(self._lane.slab(read_slab_bytes(size)), [], piece)

    def release(self) -> None:
        """Give the slabs back, once all bytes were taken and copied."""
        while self._ahead:
            slab, future = self._ahead[0]
            future.result()  # first: `settle` waits for those that are there
            self._ahead.popleft()
            self._lane.keep(slab)

    def settle(self) -> None:
        """Wait until all bytes were copied, and the stopwatch knows of it."""
        for _, future in list(self._ahead):
            future.result()

    def close(self) -> None:
        """Wait for the reads under way; the slabs are free then."""
        self._pool.shutdown(cancel_futures=True)

    def fill(self, target: Any) -> None:
        """Copy the next bytes of the runs into the bytes of a batch, all of it."""
        at = 0
        while at < target.nbytes:
            if not self._views:
                self._current, future = self._ahead.popleft()
                self._views = self._watch.timed("waited_for_reads", future.result)
                self._marks = []
            taken, self._views = _split(self._views, target.nbytes - at)
            size = sum(view.nbytes for view in taken)
            self._marks.append((self._lane.upload(taken, target[at : at + size]), size))
            at += size
            if not self._views:
                self._read_ahead(self._current, self._marks, next(self._pieces, (0, 0)))

    def _read_ahead(
        self, slab: np.ndarray, marks: list[tuple[Mark, int]], piece: tuple[int, int]
    ) -> None:
        """Begin to read a piece, if there is one, once the memory of its slab is free."""
        self._ahead.append((slab, self._pool.submit(self._read, slab, marks, *piece)))

    def _read(
        self, slab: np.ndarray, marks: list[tuple[Mark, int]], low: int, high: int
    ) -> list[np.ndarray]:
        self._lane.bind()
        for mark, nbytes in marks:
            self._watch.note("upload", mark.wait(), nbytes)
        if low == high:
            return []
        views = self._watch.timed(
            "read", lambda: self._stack.read_bytes(self._files, slab, low, high), high - low
        )
        for what, taker in self._takers.items():
            self._watch.timed(what, lambda taker=taker: taker.update(low - self._begin, views))
        return views


def read_slab_bytes(nbytes: int) -> int:
    """Bytes of a slab to read so many bytes into."""
    return PAGE + nbytes + SPARE_BYTES  # the page lets a copy (copy.py) use it, too


def _split(views: list[np.ndarray], nbytes: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Views of the first ``nbytes`` bytes, or of all there are, and of the rest."""
    taken = []
    for i, view in enumerate(views):
        if view.nbytes > nbytes:
            first = [view[:nbytes]] if nbytes else []
            return taken + first, [view[nbytes:], *views[i + 1 :]]
        taken.append(view)
        nbytes -= view.nbytes
    return taken, []


class Drain:
    """Batches on their way into a file, in order, through slabs that several files may share."""

    def __init__(
        self, lane: Lane, writer: StackWriter, slabs: SimpleQueue[np.ndarray], watch: Stopwatch
    ) -> None:
        self._lane, self._writer, self._watch, self._slabs = lane, writer, watch, slabs
        self._pool = ThreadPoolExecutor(memory.WRITE_SLABS, "write")
        self._writes: deque[Future[None]] = deque()
        self._slab: np.ndarray | None = None
        self._marks: list[tuple[Mark, int]] = []
        self._done = self._filled = 0

    def close(self) -> None:
        """Wait for the writes under way; no slab is held then."""
        self._pool.shutdown(cancel_futures=True)
        if self._slab is not None:
            self._slabs.put(self._slab)
            self._slab = None

    def write(self, source: Any) -> None:
        """Write the next bytes of the file; they may be overwritten when this returns."""
        at, last = 0, None
        while at < source.nbytes:
            slab = self._slab_to_fill()
            size = min(source.nbytes - at, slab.nbytes - self._filled)
            last = self._lane.download(
                source[at : at + size], slab[self._filled : self._filled + size]
            )
            self._marks.append((last, size))
            self._filled += size
            at += size
            if self._filled == slab.nbytes or self._done + self._filled == self._writer.nbytes:
                self._flush()
        if last is not None:
            last.wait()

    def finish(self) -> None:
        """Wait until all is written; raise what went wrong."""
        for future in self._writes:
            future.result()

    def _slab_to_fill(self) -> np.ndarray:
        if self._slab is None:
            self._slab = self._watch.timed("waited_for_writes", self._slabs.get)
            while self._writes and self._writes[0].done():
                self._writes.popleft().result()
        return self._slab

    def _flush(self) -> None:
        """Write the part of the slab that was filled; it is free again afterwards."""
        slab, part = self._slab, self._slab[: self._filled]
        future = self._pool.submit(self._write_part, part, self._marks, self._done)
        future.add_done_callback(lambda _: self._slabs.put(slab))
        self._writes.append(future)
        self._done += self._filled
        self._slab, self._marks, self._filled = None, [], 0

    def _write_part(self, part: np.ndarray, marks: list[tuple[Mark, int]], offset: int) -> None:
        self._lane.bind()
        for mark, nbytes in marks:
            self._watch.note("download", mark.wait(), nbytes)
        self._watch.timed("write", lambda: self._writer.write_at(offset, [part]), part.nbytes)
