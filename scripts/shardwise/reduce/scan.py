"""Reading for the reduce: rows of many files, ahead of who adds them, each byte once.

What the page cache holds is copied to a buffer that stays in the processor's caches, and no other
thread takes part. All else is read ahead, into slabs of a fixed number. Files of a few rows are
read together, as rows are added fastest many at a time. The checksum is formed on the way.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from shardwise.files import direct
from shardwise.files.checksum import piece_digest
from shardwise.files.direct import Extent, ExtentReader
from shardwise.files.npy import DATA_OFFSET
from shardwise.numerics.rows import Rows
from shardwise.plan import memory
from shardwise.reduce.layout import Batch, Layout

AHEAD = 3
"""Batches that are read ahead."""

_MOST_TOGETHER = 256
"""Files that are read together, as far as `memory.REDUCE_BATCH_BYTES` go."""

_Piece = tuple[Extent, int]
"""Where a piece of a file's checksum lies, and its number."""


@dataclass
class Part:
    """A batch that was read, or several of whole shards that follow each other.

    ``rows`` are its rows in order; one item, unless they could not be read to equal distances.
    ``digests`` are, batch by batch, the XOR of the digests of its pieces.
    """

    batches: list[Batch]
    rows: list[Rows]
    digests: list[int]
    slab: np.ndarray | None = None


class Scan(AbstractContextManager):
    """Reads batches in order, some of them ahead.

    Parameters
    ----------
    path_of
        The file of a shard, by its place in the plan. Its header and size have been checked.
    dtype
        Of the numbers in all files.
    """

    def __init__(
        self, layout: Layout, batches: Iterable[Batch], path_of: Callable[[int], Path], dtype: str
    ) -> None:
        self._layout, self._batches = layout, iter(batches)
        self._path_of, self._dtype = path_of, np.dtype(dtype)
        self._reader = ExtentReader()
        self._pool = ThreadPoolExecutor(AHEAD, "scan")
        self._slabs: list[np.ndarray] = []
        self._hot = np.empty(0, np.uint8)  # what was taken last, where it came from the page cache
        self._ahead: deque[tuple[list[Batch], list[list[_Piece]], Future | None]] = deque()
        self._next = next(self._batches, None)
        for _ in range(AHEAD):
            self._submit()

    def __exit__(self, *error: object) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._reader.__exit__(*error)

    @property
    def stripe(self) -> int | None:
        """The stripe of the next batch; None where there is no more."""
        return self._ahead[0][0][0].stripe if self._ahead else None

    def take(self, result: Callable[[Future], Part]) -> Part:
        """The next batch, to be given back before the one after; ``result`` waits for a future."""
        batches, pieces, future = self._ahead.popleft()
        return self._copy(batches, pieces) if future is None else result(future)

    def give_back(self, part: Part) -> None:
        """Let the memory of a part be used again, and read on."""
        if part.slab is not None:
            self._slabs.append(part.slab)
        self._submit()

    def _submit(self) -> None:
        batches = self._take_next()
        if not batches:
            return
        pieces, future = [list(self._pieces(batch)) for batch in batches], None
        (first, _), (last, _) = pieces[0][0], pieces[0][-1]
        if not self._reader.cached(first._replace(nbytes=last.offset + last.nbytes - first.offset)):
            slab = self._slabs.pop() if self._slabs else None
            future = self._pool.submit(self._read, batches, pieces, slab)
        self._ahead.append((batches, pieces, future))

    def _take_next(self) -> list[Batch]:
        """The next batch, and those behind it while each is all of the next shard."""
        batches: list[Batch] = []
        layout, nbytes, whole = self._layout, 0, True
        while self._next is not None and whole and len(batches) < _MOST_TOGETHER:
            batch = self._next
            whole = (batch.first, batch.last) == (0, layout.rows[batch.shard])
            nbytes += (batch.last - batch.first) * (batch.high - batch.low) * layout.item
            if batches:
                follows = batch.stripe == batches[0].stripe and batch.shard == batches[-1].shard + 1
                if not (whole and follows and nbytes <= memory.REDUCE_BATCH_BYTES):
                    break
            batches.append(batch)
            self._next = next(self._batches, None)
        return batches

    def _pieces(self, batch: Batch) -> Iterator[_Piece]:
        """The pieces of the checksum that a batch is, in order."""
        layout, path = self._layout, str(self._path_of(batch.shard))
        step = 1 if layout.stripes > 1 else layout.unit_rows  # rows of a piece
        for row in range(batch.first, batch.last, step):
            begin = DATA_OFFSET + (row * layout.numbers + batch.low) * layout.item
            rows = min(step, batch.last - row)
            nbytes = rows * (batch.high - batch.low) * layout.item
            yield Extent(path, begin, nbytes), layout.piece(row, batch.low)

    def _copy(self, batches: list[Batch], pieces: list[list[_Piece]]) -> Part:
        """Batches from the page cache; their rows lie side by side in the one buffer."""
        size = sum(extent.nbytes for own in pieces for extent, _ in own)
        if self._hot.nbytes < size:
            self._hot = direct.aligned_empty(size)
        digests, at = [], 0
        for own in pieces:
            extents = [extent for extent, _ in own]
            digests.append(_digest(own, self._reader.copy(extents, self._hot[at:])))
            at += sum(extent.nbytes for extent in extents)
        width = batches[0].high - batches[0].low
        numbers = self._hot[:size].view(self._dtype)
        return Part(batches, [Rows(numbers, 0, width, len(numbers) // width, width)], digests)

    def _read(
        self, batches: list[Batch], pieces: list[list[_Piece]], slab: np.ndarray | None
    ) -> Part:
        extents = [extent for own in pieces for extent, _ in own]
        size = direct.buffer_bytes(extents)
        if slab is None or slab.nbytes < size:
            # Others of this size may begin at later bytes of a page.
            slab = direct.aligned_empty(size + len(extents) * direct.PAGE)
        views = self._reader.read(extents, slab)
        ends = iter(views)
        digests = [_digest(own, ends) for own in pieces]
        item, width = self._layout.item, batches[0].high - batches[0].low
        flat = slab[: slab.nbytes // item * item].view(self._dtype)
        runs = [
            ((view.ctypes.data - slab.ctypes.data) // item, view.nbytes // (width * item))
            for view in views
        ]
        strides = {b - a for (a, _), (b, _) in pairwise(runs)} or {width}
        if len(strides) == 1 and (len(runs) == 1 or all(n == 1 for _, n in runs)):
            count = sum(n for _, n in runs)
            rows = [Rows(flat, runs[0][0], strides.pop(), count, width)]
        else:  # rows that begin at different bytes of a page do not lie at equal distances
            rows = [Rows(flat, start, width, n, width) for start, n in runs]
        return Part(batches, rows, digests, slab)


def _digest(pieces: Iterable[_Piece], views: Iterator[np.ndarray]) -> int:
    """XOR of the digests of pieces, of which each view holds some, one behind the other."""
    digest, at, view = 0, 0, next(views)
    for extent, number in pieces:
        if at == len(view):
            view, at = next(views), 0
        digest ^= piece_digest(view[at : at + extent.nbytes], number)
        at += extent.nbytes
    return digest
