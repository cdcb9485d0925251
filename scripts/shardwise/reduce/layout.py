"""Who reads what in the reduce: arithmetic on rows, stripes and ranks. No files, no MPI.

A shard's file holds rows: its products, the planes of their sum, or one plain sum. Long rows are
cut into *stripes*, each summed by itself over all rows: what a rank holds is as long as a stripe. A
*unit* is read by one rank: some rows of a shard, or all of them where they are planes, which only
mean something together. A run ``(first, last)`` of units is half open.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

Run = tuple[int, int]

_WORTH = 0.9  # of the ranks at work, on average, where each has whole stripes to itself


class Batch(NamedTuple):
    """Rows ``first`` to ``last`` of one shard, and of each the numbers ``low`` to ``high``."""

    stripe: int
    shard: int
    first: int
    last: int
    low: int
    high: int


@dataclass(frozen=True)
class Layout:
    """How the rows of all shards are cut.

    ``rows`` are those in the file of each shard, ``numbers`` those of a row, of ``item`` bytes
    each. ``row_bytes`` and ``piece_bytes`` are of the checksum (`files.pieces.checksum_pieces`): a
    stripe is a piece of a row, and what is read is whole pieces. With ``planes`` the rows of a
    shard belong together.
    """

    rows: Sequence[int]
    numbers: int
    item: int
    row_bytes: int
    piece_bytes: int
    planes: bool = False

    @cached_property
    def _starts(self) -> list[int]:
        """First unit of each shard, and the number of all."""
        counts = [1 if self.planes else -(-n // self.unit_rows) for n in self.rows]
        return list(accumulate(counts, initial=0))

    @cached_property
    def stripes(self) -> int:
        """Stripes of a row; short rows have one."""
        return max(1, -(-self.numbers * self.item // self.piece_bytes))

    @property
    def units(self) -> int:
        """Units of all shards, of which every stripe is read."""
        return self._starts[-1]

    @cached_property
    def unit_rows(self) -> int:
        """Rows of a unit, where they do not belong together: whole pieces of the checksum."""
        return max(1, self.row_bytes // max(1, self.numbers * self.item))

    def bounds(self, stripe: int) -> Run:
        """The numbers of a stripe."""
        width = self.piece_bytes // self.item if self.stripes > 1 else self.numbers
        return stripe * width, min((stripe + 1) * width, self.numbers)

    def batches(self, stripe: int, runs: Iterable[Run], most_bytes: int) -> Iterator[Batch]:
        """Runs of units as rows of shards, in order, each of at most so many bytes or one unit."""
        low, high = self.bounds(stripe)
        row_bytes = max(1, (high - low) * self.item)
        step = max(1, most_bytes // (row_bytes * self.unit_rows))
        for first, last in runs:
            at = first
            while at < last:
                shard = bisect_right(self._starts, at) - 1
                begin, end = self._starts[shard], self._starts[shard + 1]
                stop, rows = min(last, end, at + step), self.rows[shard]
                if not self.planes:
                    rows = min(rows, (stop - begin) * self.unit_rows)
                yield Batch(stripe, shard, (at - begin) * self.unit_rows, rows, low, high)
                at = stop

    def units_of(self, batch: Batch) -> Run:
        """The units that a batch is made of."""
        start = self._starts[batch.shard]
        if self.planes:
            return start, start + 1
        return start + batch.first // self.unit_rows, start - (-batch.last // self.unit_rows)

    def piece(self, row: int, low: int) -> int:
        """Number of the checksum's piece that begins in a row, at one of its numbers."""
        if self.stripes > 1:
            return row * self.stripes + low * self.item // self.piece_bytes
        return row // self.unit_rows


def teams(stripes: int, ranks: int) -> int:
    """Number of teams of equally many ranks: each stripe is the work of one team.

    A rank alone on its stripes has nothing to merge. Ranks share the rows of each stripe where
    there are few stripes, so that some ranks would have more of them than others.
    """
    for count in range(min(stripes, ranks), 1, -1):
        if ranks % count == 0 and stripes >= _WORTH * count * -(-stripes // count):
            return count
    return 1


def share(total: int, part: int, parts: int) -> Run:
    """First and last, the last exclusive, of the equal part of a number of things."""
    return total * part // parts, total * (part + 1) // parts


def remaining(total: int, done: Iterable[Run]) -> list[Run]:
    """The runs of 0 … ``total`` that some disjoint runs leave out."""
    left, at = [], 0
    for first, last in sorted(done):
        if at < first:
            left.append((at, first))
        at = last
    return [*left, (at, total)] if at < total else left


def portion(runs: Iterable[Run], part: int, parts: int) -> list[Run]:
    """The equal part of some runs, as if they followed each other."""
    runs = list(runs)
    low, high = share(sum(last - first for first, last in runs), part, parts)
    taken, at = [], 0
    for first, last in runs:
        begin, end = max(low - at, 0), min(high - at, last - first)
        if begin < end:
            taken.append((first + begin, first + end))
        at += last - first
    return taken


def joined(runs: Iterable[Run]) -> list[Run]:
    """Disjoint runs in rising order, those that touch made one."""
    out: list[Run] = []
    for first, last in sorted(runs):
        if out and out[-1][1] == first:
            out[-1] = (out[-1][0], last)
        elif first < last:
            out.append((first, last))
    return out


def overlap(runs: Iterable[Run], others: Iterable[Run]) -> bool:
    """Whether two sets of runs have a unit in common."""
    others = list(others)
    return any(a < d and c < b for a, b in runs for c, d in others)
