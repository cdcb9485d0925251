"""Who reads what in the reduce: arithmetic on rows, stripes and ranks. No files, no MPI.

A shard's file holds rows: its products, or the nodes of their sum. Long rows are cut into
*stripes*, each summed by itself over all rows: what a rank holds is as long as a stripe. A *unit*
is the rows of a shard that share a piece of the checksum; one rank reads it as a whole.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

Span = tuple[int, int]  # first, and last exclusive

_FINENESS = 16  # parts of a rank's share that its borders may move by, so that few nodes are cut


class Rows(NamedTuple):
    """Rows ``first`` to ``last`` of a shard's file."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """How the rows of all shards are cut.

    ``rows`` are those in the file of each shard, ``numbers`` those of a row, of ``item`` bytes
    each. ``row_bytes`` and ``piece_bytes`` are of the checksum (`files.pieces.checksum_pieces`): a
    stripe is a piece of a row, and what is read is whole pieces.
    """

    rows: Sequence[int]
    numbers: int
    item: int
    row_bytes: int
    piece_bytes: int

    @cached_property
    def stripes(self) -> int:
        """Stripes of a row; short rows have one."""
        return max(1, -(-self.numbers * self.item // self.piece_bytes))

    @cached_property
    def unit_rows(self) -> int:
        """Rows of a unit."""
        return max(1, self.row_bytes // max(1, self.numbers * self.item))

    @cached_property
    def starts(self) -> list[int]:
        """First row of each shard, counted over all, and the number of all rows."""
        return list(accumulate(self.rows, initial=0))

    def bounds(self, stripe: int) -> Span:
        """The numbers of a stripe."""
        width = self.piece_bytes // self.item if self.stripes > 1 else self.numbers
        return stripe * width, min((stripe + 1) * width, self.numbers)

    def share(self, part: int, parts: int) -> Span:
        """The rows, counted over all, of one of so many ranks: whole units, about as many each."""
        return self._border(part, parts), self._border(part + 1, parts)

    def _border(self, part: int, parts: int) -> int:
        total = self.starts[-1]
        if part in (0, parts):
            return total if part else 0
        grain = 1 << max(0, (total // (parts * _FINENESS)).bit_length() - 1)
        row = total * part // parts // grain * grain
        shard = bisect_right(self.starts, row) - 1
        begin, end = self.starts[shard], self.starts[shard + 1]
        return min(end, begin + -(-(row - begin) // self.unit_rows) * self.unit_rows)

    def batches(self, span: Span, stripe: int, most_bytes: int) -> Iterator[Rows]:
        """Some rows, counted over all, by files: so many bytes of a stripe each, or one unit."""
        low, high = self.bounds(stripe)
        unit = max(1, (high - low) * self.item) * self.unit_rows
        step = max(1, most_bytes // unit) * self.unit_rows
        at, last = span
        while at < last:
            shard = bisect_right(self.starts, at) - 1
            begin = self.starts[shard]
            stop = min(last, self.starts[shard + 1], at + step)
            yield Rows(shard, at - begin, stop - begin)
            at = stop

    def pieces(self, rows: Rows, stripe: int) -> Iterator[tuple[int, int, int]]:
        """Number, first byte and bytes of each of the checksum's pieces of some rows of a file."""
        low, high = self.bounds(stripe)
        for row in range(rows.first, rows.last, self.unit_rows):
            number = row // self.unit_rows * self.stripes + stripe
            count = min(self.unit_rows, rows.last - row)
            begin = (row * self.numbers + low) * self.item
            yield number, begin, count * (high - low) * self.item


def spread(total: int, part: int, parts: int) -> Span:
    """First and last, the last exclusive, of the equal part of a number of things."""
    return total * part // parts, total * (part + 1) // parts
