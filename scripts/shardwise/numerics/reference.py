"""The CPU's own account of a product, for the end-to-end proof."""

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.plan.problem import Problem

SEED = 0x5EED
"""Which weights; receipts name them, and numbers of other weights are never compared."""

SAMPLE = 64
"""Where the CPU takes no number of every matrix, it does of one in so many at the most."""

SAMPLES = 1024
"""Of a shard, at most about so many are taken then."""

KEEPS_UP = ("float32", "float64", "complex64", "complex128")
"""Element types whose numbers the CPU takes about as fast as a disk reads and writes them."""

_GOLDEN = 0x9E3779B97F4A7C15
_SIDES = {"l": 0, "r": 1 << 62}
_SCALE = 2.0**64
"""Weights of the CPU's own number are so much larger: then nothing that meets them underflows."""
_BLOCK = 2**18
"""Elements that are widened at once; they stay in a core's cache. Each call of NumPy waits for
Python's lock, so many small blocks would hold up the thread that feeds the device."""


def weights(side: str, length: int, integer: bool) -> np.ndarray:
    """The first weights ``(length,)`` of a side, ``l`` or ``r``.

    Of random sign and of modulus 1/2 to 1, below 1; for integers random odd int64. They are
    hashes of their index by the mixer of splitmix64 (G. Steele, D. Lea and C. Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014), so no version of NumPy changes them.
    """
    x = (np.arange(length, dtype=np.uint64) + np.uint64(SEED + _SIDES[side])) * np.uint64(_GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    if integer:
        return (x | np.uint64(1)).view(np.int64)
    modulus = 0.5 + (x >> np.uint64(12)) * 2.0**-53
    return np.where(x & np.uint64(1), modulus, -modulus)


def sample_every(count: int) -> int:
    """Of so many matrices one in how many is sampled, beginning with the first."""
    return max(SAMPLE, -(-count // SAMPLES))


# On the device: what the proof of each batch gives.


class ShardForms:
    """Adds up the forms of all batches of a shard.

    Parameters
    ----------
    start
        The first matrix of the shard.
    every
        One matrix in so many is sampled; None: none is.

    Attributes
    ----------
    rows
        How many forms were added.
    references, masses
        Of the sampled matrices, by their index in the shard.
    """

    def __init__(self, start: int, every: int | None) -> None:
        self._start, self._every = start, every
        self._totals: list[np.ndarray] = []
        self.rows = 0
        self.references: dict[int, np.ndarray] = {}
        self.masses: dict[int, float] = {}

    def add(self, first: int, forms: np.ndarray) -> None:
        """Add forms, the first of which belongs to matrix ``first`` of the whole stack.

        They are float64 ``(n, 2 q + 1)``: contribution, reference, mass; the first two are q = 2
        numbers each where complex, else 1. Of integers int64 ``(n, 2)``: the first two.
        """
        self._totals.append(_added(forms))
        self.rows += len(forms)
        if self._every:
            low, every = first - self._start, self._every
            for i in range(-(-low // every) * every, low + len(forms), every):
                _, self.references[i], self.masses[i] = parts_of(forms[i - low])

    def total(self) -> np.ndarray:
        """The sum of all forms, each number rounded once more."""
        return summed(self._totals)


def _added(rows: np.ndarray) -> np.ndarray:
    """Rows added up; along contiguous numbers NumPy does it pairwise."""
    with np.errstate(all="ignore"):
        total: np.ndarray = np.ascontiguousarray(rows.T).sum(axis=1)
    return total


def parts_of(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Contribution, reference and mass of a row of forms; integers have no mass."""
    parts = len(row) // 2
    mass = float(row[-1]) if len(row) % 2 else 0.0
    return row[:parts], row[parts : 2 * parts], mass


def summed(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows added up: exactly modulo 2⁶⁴, or rounded once; NaN where one is not finite."""
    table = np.array(rows)
    if table.dtype.kind == "i":
        total: np.ndarray = table.sum(axis=0)
        return total
    if np.isfinite(table).all():
        with suppress(OverflowError):
            return np.array([math.fsum(column) for column in table.T])
    return np.full(table.shape[1], np.nan)


# On the CPU: from the bytes as they are read.


class Reference:
    """The number ``lᵀ A B r`` of some matrices, from runs of their elements in any order.

    ``lᵀ A B r = (Aᵀ l) · (B r)``, and each of the two vectors is a sum over elements. So of a
    matrix in pieces no more than these is held. Any thread may bring a run.

    Parameters
    ----------
    count
        Matrices in the run.
    every
        One matrix in so many counts, beginning with the first; None: all do, and only their total
        is kept.
    right
        What :class:`RightVector` has for a B that serves all.

    Attributes
    ----------
    values
        The number of each matrix that counts, ``(n, 1)``; complex ``(n, 2)``.
    """

    def __init__(
        self, problem: Problem, count: int, every: int | None = None,
        right: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        (m, p), self._shape = problem.product_shape, problem.left
        integer = "int" in problem.dtype
        l, r = (_scaled(side, n, integer) for side, n in (("l", m), ("r", p)))  # noqa: E741
        sides: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {
            "A @ A": ([r], [l]), "A.T @ A": ([l, r], []),
            "A @ A.T": ([], [l, r]), "A @ B": ([], [l]),
        }  # fmt: skip
        self._vectors = _Vectors(self._shape, problem.dtype, *sides[problem.product])
        self.every, self._right, self._integer = every or 1, right, integer
        parts, singles = 2 if "complex" in problem.dtype else 1, -(-count // every) if every else 0
        self.values = np.zeros((singles, parts), "int64" if integer else "float64")
        self._sums: dict[int, np.ndarray] | None = None if every else {}
        self._dtype = np.dtype(problem.dtype)
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()

    def update(self, offset: int, views: Iterable[np.ndarray]) -> None:
        """Take consecutive whole elements, from byte ``offset`` of the run on."""
        with np.errstate(all="ignore"):
            for first, flat in _runs(self._dtype, offset, views):
                self._take(first, flat)

    def total(self) -> np.ndarray:
        """All numbers added up, ``(1,)`` or ``(2,)``; NaN where one is not finite."""
        sums = {0: _added(self.values)} if self._sums is None else self._sums
        return summed([sums[first] for first in sorted(sums)])

    def finite(self) -> int:
        """How many values are finite: those of very large elements leave the range of float64."""
        return int(np.isfinite(self.values).all(axis=1).sum())

    def _take(self, first: int, flat: np.ndarray) -> None:
        """Take elements, from number ``first`` on."""
        size, at, every = self._shape[0] * self._shape[1], 0, self.every
        while at < len(flat):
            matrix, low = divmod(first + at, size)
            if matrix % every:
                at = (-(-matrix // every) * every) * size - first
                continue
            whole = 0 if low else (len(flat) - at) // size
            if whole and size <= _BLOCK:
                count = whole if every == 1 else 1
                block = flat[at : at + count * size].reshape(count, *self._shape)
                self._take_whole(matrix // every, block)
                at += count * size
                continue
            part = flat[at : at + size - low]
            self._take_part(matrix // every, low, part)
            at += len(part)

    def _take_whole(self, number: int, block: np.ndarray) -> None:
        step = max(1, _BLOCK // (block.shape[1] * block.shape[2]))
        for low in range(0, len(block), step):
            part = block[low : low + step]
            vectors = self._vectors.of_block(part, slice(None), slice(None))
            self._keep(number + low, self._product(*vectors))

    def _take_part(self, number: int, low: int, part: np.ndarray) -> None:
        """Take a part of one matrix, and finish it once all of it has come."""
        more = _Open(*self._vectors.zeros())
        for rows, columns, by_row, by_column in self._vectors.of_run(low, part):
            more.by_row[:, rows] += by_row
            more.by_column[..., columns] += by_column
        with self._lock:
            matrix = self._open.setdefault(number, _Open(*self._vectors.zeros()))
            matrix.by_row += more.by_row
            matrix.by_column += more.by_column
            matrix.taken += len(part)
            if matrix.taken < self._shape[0] * self._shape[1]:
                return
            del self._open[number]
        self._keep(number, self._product(matrix.by_row, matrix.by_column))

    def _keep(self, number: int, values: np.ndarray) -> None:
        """Keep values ``(n, parts)``: of very many small matrices only their sums."""
        if self._sums is None:
            self.values[number : number + len(values)] = values
        else:
            self._sums[number] = _added(values)

    def _product(self, by_row: np.ndarray, by_column: np.ndarray) -> np.ndarray:
        """The numbers of matrices, from their two vectors, ``(n, parts)``."""
        vectors = [by_row[:, :, i] for i in range(by_row.shape[2])]
        vectors += [by_column[:, i] for i in range(by_column.shape[1])]
        one, other = vectors if len(vectors) == 2 else (vectors[0], self._right)
        values: np.ndarray = (one * other).sum(axis=1)
        if self._integer:
            return values[:, np.newaxis]
        return np.divide(values.view("float64").reshape(len(values), -1) / _SCALE, _SCALE)


@dataclass
class _Open:
    """A matrix of which some elements have come."""

    by_row: np.ndarray
    by_column: np.ndarray
    taken: int = 0


class _Vectors:
    """Products of a matrix with weights, from any block of it.

    Parameters
    ----------
    by_row
        Weights of columns: a number for each row comes of them.
    by_column
        Weights of rows: a number for each column.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: str, by_row: list[np.ndarray],
        by_column: list[np.ndarray],
    ) -> None:  # fmt: skip
        self._shape = shape
        kind = "int64" if "int" in dtype else "complex128" if "complex" in dtype else "float64"
        self._wide, weight = np.dtype(kind), "int64" if kind == "int64" else "float64"
        self._by_row = np.array(by_row, weight).reshape(-1, shape[1]).T
        self._by_column = np.array(by_column, weight).reshape(-1, shape[0])
        self._parts = 2 if kind == "complex128" else 1
        if self._parts == 2:
            # Real and imaginary parts of a row lie side by side, and weights are real.
            self._by_row = np.kron(self._by_row, np.eye(2))

    def zeros(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = self._shape
        return (
            np.zeros((1, rows, self._by_row.shape[1] // self._parts), self._wide),
            np.zeros((1, len(self._by_column), columns), self._wide),
        )

    def of_run(self, low: int, flat: np.ndarray) -> Iterator[tuple[slice, slice, Any, Any]]:
        """What the elements of a matrix from number ``low`` on give, a cache-sized block at a time.

        Rows and columns of each block, and what `of_block` makes of it.
        """
        width, at = self._shape[1], 0
        most = max(1, _BLOCK // width)
        while at < len(flat):
            row, column = divmod(low + at, width)
            height = min(most, (len(flat) - at) // width) if column == 0 else 0
            length = width if height else min(width - column, len(flat) - at, _BLOCK)
            rows, columns = slice(row, row + max(1, height)), slice(column, column + length)
            block = flat[np.newaxis, at : at + max(1, height) * length].reshape(1, -1, length)
            yield rows, columns, *self.of_block(block, rows, columns)
            at += block.size

    def of_block(
        self, block: np.ndarray, rows: slice, columns: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """What some rows and columns give, ``(n, rows, .)`` and ``(n, ., columns)``."""
        n, height, width = block.shape
        parts = self._parts
        flat = block.astype(self._wide, copy=False)
        if parts == 2:
            flat = flat.view("float64")
            columns = slice(*(x if x is None else 2 * x for x in (columns.start, columns.stop)))
        by_row = flat.reshape(n * height, parts * width) @ self._by_row[columns]
        by_column = self._by_column[:, rows] @ flat
        return by_row.reshape(n, height, -1).view(self._wide), by_column.view(self._wide)


def _runs(
    dtype: np.dtype, offset: int, views: Iterable[np.ndarray]
) -> Iterator[tuple[int, np.ndarray]]:
    """Views of whole elements, each with the number of its first; uint64 is viewed as int64."""
    for view in views:
        yield offset // dtype.itemsize, view.view("int64" if dtype == "uint64" else dtype)
        offset += view.nbytes


def _scaled(side: str, length: int, integer: bool) -> np.ndarray:
    plain = weights(side, length, integer)
    return plain if integer else plain * _SCALE


class RightVector:
    """``B r`` of the one B ``(k, p)`` for all matrices, from runs of its elements in any order."""

    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        r = _scaled("r", shape[1], "int" in dtype)
        self._vectors = _Vectors(shape, dtype, [r], [])
        self._dtype = np.dtype(dtype)
        self._vector = self._vectors.zeros()[0]

    def update(self, offset: int, views: Iterable[np.ndarray]) -> None:
        """Take consecutive elements, from byte ``offset`` on; each only once, and in one thread."""
        with np.errstate(all="ignore"):
            for first, flat in _runs(self._dtype, offset, views):
                for rows, _, by_row, _ in self._vectors.of_run(first, flat):
                    self._vector[:, rows] += by_row

    def value(self) -> np.ndarray:
        """``B r``, shape ``(k,)``, as :class:`Reference` takes it."""
        return self._vector[0, :, 0]


# Of the sum.


class SumForm:
    """``lᵀ S r`` of the sum ``(m, p)``, from runs of its elements; each comes once, on any rank."""

    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        integer = "int" in dtype
        self._parts = 2 if "complex" in dtype else 1
        self._left = weights("l", shape[0], integer)
        self._vectors = _Vectors(shape, dtype, [weights("r", shape[1], integer)], [])
        self._dtype = "int64" if integer else "float64"
        self._runs: list[np.ndarray] = []

    def add(self, elements: np.ndarray, low: int) -> None:
        """Add the elements ``(width,)`` from number ``low`` of the flat result on."""
        forms = []
        with np.errstate(all="ignore"):
            for rows, _, by_row, _ in self._vectors.of_run(low, elements):
                numbers = by_row[0, :, 0].view(self._dtype).reshape(-1, self._parts)
                forms.append(self._left[rows] @ numbers)
        self._runs.append(summed(forms))

    def dump(self) -> np.ndarray:
        """The form of each run."""
        return np.array(self._runs, self._dtype).reshape(-1, self._parts)

    def merge(self, dump: np.ndarray) -> None:
        """Add the dump of another."""
        self._runs += list(dump)

    def value(self) -> np.ndarray:
        """What has come so far, ``(1,)`` or ``(2,)``."""
        return summed([np.zeros(self._parts, self._dtype), *self._runs])
