"""Reading for the reduce: rows of many files, ahead of who adds them, each byte once.

What the page cache holds is copied to a buffer that stays in the processor's caches, and no other
thread takes part. All else is read ahead: tiny files many together, the rest into slabs of a fixed
number. The checksum is formed on the way.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from shardwise.errors import IntegrityError, writing
from shardwise.files import direct, small
from shardwise.files.checksum import piece_digest
from shardwise.files.direct import Extent, ExtentReader
from shardwise.files.npy import DATA_OFFSET
from shardwise.numerics.rows import Rows
from shardwise.reduce.layout import Batch, Layout

AHEAD = 3
"""Batches that are read ahead."""

_TINY_BYTES, _MOST_TOGETHER = 32_768, 256  # elements of a tiny file, and how many make one part


_Piece = tuple[Extent, int]
"""Where a piece of a file's checksum lies, and its number."""


@dataclass
class Part:
    """A batch that was read, or several of tiny files that follow each other.

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
        self._ahead: deque[tuple[list[Batch], list[_Piece], Future | None]] = deque()
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
        return self._copy(batches[0], pieces) if future is None else result(future)

    def give_back(self, part: Part) -> None:
        """Let the memory of a part be used again, and read on."""
        if part.slab is not None:
            self._slabs.append(part.slab)
        self._submit()

    def _submit(self) -> None:
        batches = self._take_next()
        if not batches:
            return
        pieces, future = [piece for batch in batches for piece in self._pieces(batch)], None
        (first, _), (last, _) = pieces[0], pieces[-1]
        whole = first._replace(nbytes=last.offset + last.nbytes - first.offset)
        if len(batches) > 1:
            future = self._pool.submit(self._read_tiny, batches, pieces)
        elif not self._reader.cached(whole):
            slab = self._slabs.pop() if self._slabs else None
            future = self._pool.submit(self._read, batches[0], pieces, slab)
        self._ahead.append((batches, pieces, future))

    def _take_next(self) -> list[Batch]:
        """The next batch, and those behind it while all are tiny files: one at a time is slow."""
        batches: list[Batch] = []
        all_tiny = True
        while self._next is not None:
            tiny, following = self._is_tiny(self._next), self._next.shard - len(batches)
            if batches and not (tiny and all_tiny and following == batches[0].shard):
                break
            batches.append(self._next)
            all_tiny = tiny and len(batches) < _MOST_TOGETHER
            self._next = next(self._batches, None)
        return batches

    def _is_tiny(self, batch: Batch) -> bool:
        """Whether a batch is one small piece, and all that its file holds."""
        layout, rows = self._layout, self._layout.rows[batch.shard]
        one_piece = not layout.planes and layout.stripes == 1 and rows <= layout.unit_rows
        return (
            one_piece
            and (batch.first, batch.last) == (0, rows)
            and rows * layout.numbers * layout.item <= _TINY_BYTES
        )

    def _pieces(self, batch: Batch) -> Iterator[_Piece]:
        """The pieces of the checksum that a batch is, in order."""
        layout, path = self._layout, str(self._path_of(batch.shard))
        step = 1 if layout.stripes > 1 else layout.unit_rows  # rows of a piece
        for row in range(batch.first, batch.last, step):
            begin = DATA_OFFSET + (row * layout.numbers + batch.low) * layout.item
            rows = min(step, batch.last - row)
            nbytes = rows * (batch.high - batch.low) * layout.item
            yield Extent(path, begin, nbytes), layout.piece(row, batch.low)

    def _copy(self, batch: Batch, pieces: list[_Piece]) -> Part:
        """A batch from the page cache; its rows lie side by side in the one buffer."""
        extents = [extent for extent, _ in pieces]
        size = sum(extent.nbytes for extent in extents)
        if self._hot.nbytes < size:
            self._hot = direct.aligned_empty(size)
        digest = _digest(pieces, self._reader.copy(extents, self._hot))
        width = batch.high - batch.low
        rows = Rows(self._hot[:size].view(self._dtype), 0, width, batch.last - batch.first, width)
        return Part([batch], [rows], [digest])

    def _read(self, batch: Batch, pieces: list[_Piece], slab: np.ndarray | None) -> Part:
        extents = [extent for extent, _ in pieces]
        size = direct.buffer_bytes(extents)
        if slab is None or slab.nbytes < size:
            # Others of this size may begin at later bytes of a page.
            slab = direct.aligned_empty(size + len(extents) * direct.PAGE)
        views = self._reader.read(extents, slab)
        item, width, count = self._layout.item, batch.high - batch.low, batch.last - batch.first
        flat = slab[: slab.nbytes // item * item].view(self._dtype)
        starts = [(view.ctypes.data - slab.ctypes.data) // item for view in views]
        strides = {b - a for a, b in pairwise(starts)} or {width}
        if len(strides) == 1:
            rows = [Rows(flat, starts[0], strides.pop(), count, width)]
        else:  # rows that begin at different bytes of a page do not lie at equal distances
            rows = [Rows(flat, start, width, 1, width) for start in starts]
        return Part([batch], rows, [_digest(pieces, views)], slab)

    def _read_tiny(self, batches: list[Batch], pieces: list[_Piece]) -> Part:
        """Small files, each in one read; their rows lie side by side."""
        flat = np.empty(sum(extent.nbytes for extent, _ in pieces), np.uint8)
        digests, at = [], 0
        for extent, number in pieces:
            view = flat[at : at + extent.nbytes]
            with writing(extent.path), small.opened(extent.path) as (descriptor, _):
                if os.preadv(descriptor, [view], extent.offset) != extent.nbytes:
                    raise IntegrityError(f"{extent.path}: became shorter while it was read")
            digests.append(piece_digest(view, number))
            at += extent.nbytes
        width = self._layout.numbers
        numbers = flat.view(self._dtype)
        return Part(batches, [Rows(numbers, 0, width, len(numbers) // width, width)], digests)


def _digest(pieces: Iterable[_Piece], views: Iterable[np.ndarray]) -> int:
    """XOR of the digests of pieces, of which each view holds some, one behind the other."""
    digest, at, views = 0, 0, iter(views)
    view = next(views)
    for extent, number in pieces:
        if at == len(view):
            view, at = next(views), 0
        digest ^= piece_digest(view[at : at + extent.nbytes], number)
        at += extent.nbytes
    return digest
