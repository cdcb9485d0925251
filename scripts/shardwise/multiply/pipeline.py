"""The pipeline: slabs of bytes from files into batches, and from batches into a file.

Reads, uploads, work, downloads and writes of different slabs overlap. The number of slabs is fixed
beforehand, and so is the memory: a stage that is ahead waits for a slab.
"""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from shardwise.files.checksum import PieceChecksum
from shardwise.files.direct import PAGE, ExtentReader
from shardwise.files.npy import StackWriter
from shardwise.multiply.lanes import Lane, Mark
from shardwise.numerics.reference import Reference
from shardwise.plan import memory
from shardwise.plan.stack import SPARE_BYTES, StackReader
from shardwise.records.timeline import Stopwatch


class _Piece(NamedTuple):
    """Bytes of a stack that fill a slab, on their way through it."""

    low: int
    high: int
    views: "Future[list[np.ndarray]]"  # where they are in the slab
    marks: "Future[list[Mark]]"  # all copies of them


class Feed:
    """Bytes ``run`` of a stack on their way from files into batches, once `start` was called.

    Each slab has a thread, which reads the next unclaimed piece as soon as the slab is free. The
    pieces are handed on in the order of the file.

    Parameters
    ----------
    slabs
        The most slabs of this feed.
    room
        Has a place for each slab there may be at once, of this run and of the one before; no fewer
        than ``slabs``.
    checksum
        Takes the bytes as they are read.
    witness
        Takes the bytes once they were handed on.
    """

    def __init__(
        self, lane: Lane, stack: StackReader, files: ExtentReader, run: tuple[int, int],
        slab_bytes: int, slabs: int, room: threading.Semaphore, checksum: PieceChecksum,
        witness: Reference | None, watch: Stopwatch,
    ) -> None:  # fmt: skip
        self._lane, self._stack, self._files, self._room = lane, stack, files, room
        self._checksum, self._witness, self._watch = checksum, witness, watch
        self._begin, self._end = run
        self._piece_bytes = min(slab_bytes, run[1] - run[0])
        starts = range(*run, slab_bytes)
        self._unclaimed, self._slabs = iter(starts), min(slabs, len(starts))
        self._pool = ThreadPoolExecutor(slabs, "slab")
        self._readers: list[Future[None]] = []
        self._claiming = threading.Lock()
        self._claimed: SimpleQueue[_Piece] = SimpleQueue()
        self._piece: _Piece | None = None
        self._views: list[np.ndarray] = []
        self._marks: list[Mark] = []

    def start(self) -> None:
        """Begin to read as soon as there is room for slabs; after this, `close` is needed."""
        self._readers = [self._pool.submit(self._read_on) for _ in range(self._slabs)]

    def settle(self) -> None:
        """Wait until all bytes are copied and witnessed, and the slabs are back with the lane."""
        for reader in self._readers:
            reader.result()

    def close(self) -> None:
        """Stop all reading and waiting, and give all slabs back; no copy may be in progress."""
        with self._claiming:
            self._unclaimed = iter(())
        while not self._claimed.empty():
            self._claimed.get().marks.cancel()
        if self._piece is not None:
            self._piece.marks.cancel()
        self._pool.shutdown()

    def fill(self, target: Any) -> None:
        """Copy the next bytes of the runs into the bytes of a batch, all of it."""
        at = 0
        while at < target.nbytes:
            if not self._views:
                self._views, self._marks = self._next(), []
            taken, self._views = _split(self._views, target.nbytes - at)
            size = sum(view.nbytes for view in taken)
            self._marks.append(self._lane.upload(taken, target[at : at + size]))
            at += size
            if not self._views:
                self._piece.marks.set_result(self._marks)

    def _next(self) -> list[np.ndarray]:
        """The views of the next piece; raises the error of a thread that reads."""
        self._piece = self._claimed.get()
        return self._piece.views.result()

    def _claim(self) -> _Piece | None:
        """The next piece, which the caller then reads; None if there is none."""
        with self._claiming:
            low = next(self._unclaimed, None)
            if low is None:
                return None
            high = min(low + self._piece_bytes, self._end)
            self._claimed.put(piece := _Piece(low, high, Future(), Future()))
            return piece

    def _read_on(self) -> None:
        """Read piece after piece into a slab, once there is room for one.

        A piece is claimed first. So once all were read nobody waits for room any more, who could be
        overtaken by the next shard, which in turn waits for this one.
        """
        piece, slab = self._claim(), None
        if piece is None:
            return
        with self._room:
            try:
                self._lane.bind()
                slab = self._lane.slab(read_slab_bytes(self._piece_bytes))
                while piece is not None:
                    piece.views.set_result(views := self._read(slab, *piece[:2]))
                    if self._witness is not None:
                        offset = piece.low - self._begin
                        take = partial(self._witness.update, offset, views)
                        self._watch.timed("read", take)
                    for mark in piece.marks.result():
                        self._watch.note("upload", mark.wait())
                    piece = self._claim()
            except BaseException as error:
                if piece is None or piece.views.done():  # else the caller of `_next` would wait
                    self._claimed.put(piece := _Piece(0, 0, Future(), Future()))
                piece.views.set_exception(error)
                raise
            finally:
                if slab is not None:
                    self._lane.keep(slab)

    def _read(self, slab: np.ndarray, low: int, high: int) -> list[np.ndarray]:
        """Read bytes of the stack into a slab, and hash them."""
        at = low - self._begin

        def hash_part(part: memoryview) -> None:
            nonlocal at
            self._checksum.update(at, [part])
            at += len(part)

        read = partial(self._stack.read_bytes, self._files, slab, low, high, hash_part)
        return self._watch.timed("read", read)


def read_slab_bytes(nbytes: int) -> int:
    """The size of a slab into which ``nbytes`` bytes are read."""
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
        self._marks: list[Mark] = []
        self._done = self._filled = 0

    def close(self) -> None:
        """Wait for the writes in progress; no slab is held afterwards."""
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
            self._marks.append(last)
            self._filled += size
            at += size
            if self._filled == slab.nbytes or self._done + self._filled == self._writer.nbytes:
                self._flush()
        if last is not None:
            last.wait()

    def finish(self) -> None:
        """Wait until everything is written; raise what went wrong."""
        for future in self._writes:
            future.result()

    def _slab_to_fill(self) -> np.ndarray:
        if self._slab is None:
            self._slab = self._slabs.get()
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

    def _write_part(self, part: np.ndarray, marks: list[Mark], offset: int) -> None:
        self._lane.bind()
        for mark in marks:
            self._watch.note("download", mark.wait())
        self._watch.timed("write", lambda: self._writer.write_at(offset, [part]))
