"""Who reads what in the reduce: arithmetic on rows, stripes and ranks. No files, no MPI.

A shard's file holds rows: its products, or the nodes of their sum. Long rows are cut into
*stripes*, each summed separately over all rows, so a rank holds sums as long as one stripe. A
*unit* is the rows of a shard that share a piece of the checksum; one rank reads it as a whole.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

Span = tuple[int, int]  # first, and last exclusive

_FINENESS = 16  # borders of a rank's share move by up to 1/16 of it, so that they cut few nodes


class Rows(NamedTuple):
    """Rows ``first`` to ``last`` of a shard's file."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """How the rows of all shards are cut.

    ``rows`` has the number of rows in each shard's file; each row has ``numbers`` numbers of
    ``item`` bytes. ``row_bytes`` and ``piece_bytes`` are those of the checksum
    (`files.pieces.checksum_pieces`): a stripe is a piece of a row, and only whole pieces are read.
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
        """First row of each shard, counted over all shards; at the end the total number of rows."""
        return list(accumulate(self.rows, initial=0))

    def bounds(self, stripe: int) -> Span:
        """The numbers of a stripe."""
        width = self.piece_bytes // self.item if self.stripes > 1 else self.numbers
        return stripe * width, min((stripe + 1) * width, self.numbers)

    def share(self, part: int, parts: int) -> Span:
        """Rows, counted over all shards, of rank ``part``: whole units, an about equal share."""
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
        """Cut rows, counted over all shards, into batches of a file: ``most_bytes``, or a unit."""
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
        """Number, first byte and length of each checksum piece of some rows of a file."""
        low, high = self.bounds(stripe)
        for row in range(rows.first, rows.last, self.unit_rows):
            number = row // self.unit_rows * self.stripes + stripe
            count = min(self.unit_rows, rows.last - row)
            begin = (row * self.numbers + low) * self.item
            yield number, begin, count * (high - low) * self.item


def spread(total: int, part: int, parts: int) -> Span:
    """First and last (exclusive) of ``total`` things in part ``part`` of ``parts`` equal ones."""
    return total * part // parts, total * (part + 1) // parts
