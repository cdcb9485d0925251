"""Statistics over all products, element by element: the same bits in any order and grouping.

Runs of consecutive products are added in any order, and accumulators of the same kind are merged.
None looks at which products it has got: every product has to come exactly once.
docs/statistics.md defines each statistic, and derives its error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Protocol

import numpy as np

from shardwise.errors import InputError
from shardwise.numerics.binned import BinnedSum, double_double, rounded
from shardwise.numerics.packed import Packing
from shardwise.numerics.rows import Rows
from shardwise.plan.problem import NEEDS_ORDER

_COLUMNS = 2**15  # elements of the result at a time: with some rows they fit a core's cache
_BLOCK = 2**18  # elements of all rows at a time
_LOW = 0xFFFFFFFF
_HEAD = ~((1 << 27) - 1)  # the leading 26 significant bits of a float64: its square is exact
_NEVER = np.iinfo(np.int64).max  # index of the extreme of no products
_HUGE = 2.0**100  # far past int64
_FAR = 2.0**1000  # a difference whose square is infinite, and no step on the way to it NaN


_Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Accumulator(Protocol):
    """What all statistics do."""

    def add(self, rows: Rows, first: int) -> None:
        """Add a run of consecutive products; ``first`` is the index of its first matrix."""

    def dump(self) -> list[np.ndarray]:
        """The state as C-contiguous arrays: its own memory, which holds until it changes."""

    def merge(self, dump: list[np.ndarray]) -> None:
        """Add what the dump of another accumulator holds; nothing of it is kept."""

    def results(self, matrices: int) -> dict[str, np.ndarray]:
        """The statistics, by name, of all ``matrices`` products: arrays ``(width,)``.

        Raises
        ------
        InputError
            Where a sum or a product of integers does not fit int64.
        """


def accumulators(
    names: Iterable[str], width: int, dtype: str, origin: np.ndarray
) -> list[Accumulator]:
    """The fewest accumulators that give some statistics.

    Parameters
    ----------
    names
        Statistics, of :data:`~shardwise.files.paths.STATISTICS`.
    width
        Elements of the result.
    dtype
        Element type of the products.
    origin
        The elements ``(width,)`` of the first product of all; only ``std`` looks at it.
    """
    wanted = set(names)
    makers: dict[Callable[[], Accumulator], set[str]] = {
        lambda: _Total(width, dtype, "mean" in wanted): {"sum", "mean"},
        lambda: _Spread(width, dtype, origin): {"std"},
        lambda: _Least(width, dtype): {"min", "argmin"},
        lambda: _Greatest(width, dtype): {"max", "argmax"},
        lambda: _TreeProduct(width, dtype): {"prod"},
        lambda: _Truth(width): {"all", "any"},
    }
    return [make() for make, given in makers.items() if wanted & given]


class _Total:
    """``sum``, and ``mean`` if asked for, by binned sums: the rounded sum, divided by N."""

    def __init__(self, width: int, dtype: str, mean: bool) -> None:
        self._dtype, self._mean = dtype, mean
        self._sum = BinnedSum(np, (width,), dtype)

    def add(self, rows: Rows, first: int) -> None:
        self._sum.add_rows(rows)

    def add_packed(
        self, flat: np.ndarray, starts: Sequence[int], width: int, packing: Packing, terms: int
    ) -> None:
        """Add sums of shards, ``terms`` products in all; see `BinnedSum.merge_packed`."""
        self._sum.merge_packed(flat, starts, width, packing, terms)

    def dump(self) -> list[np.ndarray]:
        return [self._sum.planes(), np.array([self._sum.terms])]

    def merge(self, dump: list[np.ndarray]) -> None:
        planes, terms = dump
        self._sum.merge(planes, int(terms[0]))

    def results(self, matrices: int) -> dict[str, np.ndarray]:
        total = rounded(self._sum.planes(), self._dtype)
        if not self._mean:
            return {"sum": total}
        # Both parts alone: the quotient of complex numbers has NaN where one part is infinite.
        mean = _reals(total) / matrices
        return {"sum": total, "mean": mean.view(total.dtype) if total.dtype.kind == "c" else mean}


class _Spread:
    """``std`` of the population, float64: ``(N Σd² - (Σd)²) / N²`` of d = x - origin.

    NaN where a product is NaN or infinite, infinite where a square is. Complex numbers are pairs
    of real ones, and the variance is the sum of both.
    """

    def __init__(self, width: int, dtype: str, origin: np.ndarray) -> None:
        self._width = width
        self._origin = _reals(np.array(origin, dtype))
        self._parts = [
            (columns, _float64_sum(columns), _float64_sum(columns))
            for columns in _cut(len(self._origin), _COLUMNS)
        ]
        self._terms = 0

    @np.errstate(all="ignore")
    def add(self, rows: Rows, first: int) -> None:
        real = rows.reals.array
        self._terms += rows.n
        for columns, sums, squares in self._parts:
            for lines in _cut(rows.n, _BLOCK // (columns.stop - columns.start)):
                shifted = _differences(real[lines, columns], self._origin[columns])
                head = (shifted.view(np.int64) & _HEAD).view(np.float64)
                sums.add(shifted)
                squares.add(head * head)
                squares.add((shifted - head) * (shifted + head))

    def dump(self) -> list[np.ndarray]:
        planes = [binned.planes() for _, *both in self._parts for binned in both]
        return [np.array([self._terms]), *planes]

    def merge(self, dump: list[np.ndarray]) -> None:
        terms, planes = int(dump[0][0]), iter(dump[1:])
        self._terms += terms
        for _, sums, squares in self._parts:
            sums.merge(next(planes), terms)
            squares.merge(next(planes), 2 * terms)

    @np.errstate(all="ignore")
    def results(self, matrices: int) -> dict[str, np.ndarray]:
        variance = np.empty(len(self._origin))
        for columns, sums, squares in self._parts:
            variance[columns] = _variance(sums.planes(), squares.planes(), matrices)
        # A pair for complex numbers: real and imaginary part.
        return {"std": np.sqrt(variance.reshape(self._width, -1).sum(axis=1))}


class _Extreme:
    """Value (float64, int64) and matrix of the extreme; the lowest matrix of those that have it.

    NaN is more extreme than any number, as for NumPy, and zeros of both signs are equal. Zero and
    NaN come out without a sign.
    """

    _names: tuple[str, str]
    _beats: np.ufunc
    _worst: float

    def __init__(self, width: int, dtype: str) -> None:
        if "complex" in dtype:
            raise ValueError(f"{', '.join(NEEDS_ORDER)} of {dtype}: complex numbers have no order")
        worst = self._worst
        if dtype == "int64":
            worst = np.iinfo(dtype).max if worst > 0 else np.iinfo(dtype).min
        self._value = np.full(width, worst, "float32" if dtype == "float16" else dtype)
        self._index = np.full(width, _NEVER)

    def add(self, rows: Rows, first: int) -> None:
        extreme, where = self._names
        for lines, columns in _blocks(rows):
            # float16 is widened, as NumPy compares it several times as slowly.
            block = rows.array[lines, columns].astype(self._value.dtype, copy=False)
            best = getattr(block, extreme)(axis=0)
            chosen = self._candidates(columns, best, first + lines.start)
            index = first + lines.start + getattr(block[:, chosen], where)(axis=0)
            self._take(columns, chosen, best[chosen], index)

    def _better(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        better: np.ndarray = self._beats(one, other) | (np.isnan(one) & ~np.isnan(other))
        return better

    def _candidates(self, columns: slice, best: np.ndarray, lowest: int | np.ndarray) -> np.ndarray:
        """Which of ``best`` may replace what is held; none has an index below ``lowest``."""
        value, held = self._value[columns], self._index[columns]
        level = ~self._better(value, best) & (lowest < held)
        return np.flatnonzero(self._better(best, value) | level)

    def _take(
        self, columns: slice, chosen: np.ndarray, best: np.ndarray, index: np.ndarray
    ) -> None:
        """Take those of the chosen that are better, or as good at a lower index."""
        value, held = self._value[columns], self._index[columns]
        taken = self._better(best, value[chosen]) | (index < held[chosen])
        value[chosen[taken]], held[chosen[taken]] = best[taken], index[taken]

    def dump(self) -> list[np.ndarray]:
        return [self._value, self._index]

    def merge(self, dump: list[np.ndarray]) -> None:
        value, index = dump
        chosen = self._candidates(slice(None), value, index)
        self._take(slice(None), chosen, value[chosen], index[chosen])

    def results(self, matrices: int) -> dict[str, np.ndarray]:
        value = self._value
        if value.dtype != np.int64:
            value = np.where(np.isnan(value), np.nan, value.astype(np.float64) + 0.0)
        return dict(zip(self._names, (value.copy(), self._index.copy()), strict=True))


class _Least(_Extreme):
    _names = ("min", "argmin")
    _beats, _worst = np.less, np.inf


class _Greatest(_Extreme):
    _names = ("max", "argmax")
    _beats, _worst = np.greater, -np.inf


class _TreeProduct:
    """``prod``, on a binary tree over the matrices: a node is the product of its two halves.

    Which numbers are multiplied depends on the indices of the matrices alone. Integers are
    multiplied modulo 2⁶⁴, and beside that in float64, which shows what does not fit.
    """

    def __init__(self, width: int, dtype: str) -> None:
        self._step = 1 << max(1, (_BLOCK // max(1, width)).bit_length() - 1)
        if dtype == "int64":
            self._trees = [_Tree("int64", np.multiply), _Tree("float64", _bounded)]
        elif "complex" in dtype:
            self._trees = [_Tree("complex128", _complex_product)]
        else:
            self._trees = [_Tree("float64", np.multiply)]

    @np.errstate(all="ignore")
    def add(self, rows: Rows, first: int) -> None:
        start = 0
        while start < rows.n:  # up to whole nodes of as many matrices as a block takes
            stop = min(rows.n, start + self._step - (first + start) % self._step)
            for tree in self._trees:
                tree.add(rows.array[start:stop].astype(tree.dtype), first + start)
            start = stop

    def dump(self) -> list[np.ndarray]:
        return [array for tree in self._trees for array in tree.dump()]

    @np.errstate(all="ignore")
    def merge(self, dump: list[np.ndarray]) -> None:
        each = len(dump) // len(self._trees)  # trees of one accumulator have the same nodes
        for number, tree in enumerate(self._trees):
            tree.merge(dump[number * each : (number + 1) * each])

    @np.errstate(all="ignore")
    def results(self, matrices: int) -> dict[str, np.ndarray]:
        product, *estimate = [tree.product() for tree in self._trees]
        if estimate:
            _refuse_overflow(product, estimate[0])
            return {"prod": product}
        parts = _reals(product)
        parts[np.isnan(parts)] = np.nan  # without a sign
        return {"prod": product}


class _Tree:
    """Nodes ``(level, index)``: the products of matrices ``index 2^level`` to the next."""

    def __init__(self, dtype: str, multiply: _Multiply) -> None:
        self.dtype = dtype
        self._multiply = multiply
        self._nodes: dict[tuple[int, int], np.ndarray] = {}

    def add(self, block: np.ndarray, first: int) -> None:
        """Add a run ``(n, width)``; pairs of neighbours are multiplied until none is left."""
        level = 0
        while len(block):
            if first % 2:
                self._insert(level, first, block[0])
                block, first = block[1:], first + 1
            if len(block) % 2:
                self._insert(level, first + len(block) - 1, block[-1])
                block = block[:-1]
            block = self._multiply(block[::2], block[1::2])
            level, first = level + 1, first // 2

    def _insert(self, level: int, index: int, node: np.ndarray) -> None:
        """Keep a node, or complete the one above it."""
        while (sibling := self._nodes.pop((level, index ^ 1), None)) is not None:
            node = self._multiply(node, sibling)  # commutative to the bit, NaN aside
            level, index = level + 1, index // 2
        self._nodes[level, index] = node.copy()

    def dump(self) -> list[np.ndarray]:
        return [np.array(list(self._nodes), np.int64).reshape(-1, 2), *self._nodes.values()]

    def merge(self, dump: list[np.ndarray]) -> None:
        for (level, index), node in zip(dump[0].tolist(), dump[1:], strict=True):
            self._insert(level, index, node)

    def product(self) -> np.ndarray:
        nodes = sorted(self._nodes.items(), key=lambda item: item[0][1] << item[0][0])
        return reduce(self._multiply, [node for _, node in nodes]).copy()


class _Truth:
    """``all`` and ``any``: whether every product, or one, is other than 0; NaN is."""

    def __init__(self, width: int) -> None:
        self._all, self._any = np.ones(width, bool), np.zeros(width, bool)

    def add(self, rows: Rows, first: int) -> None:
        for lines, columns in _blocks(rows):
            true = rows.array[lines, columns] != 0
            self._all[columns] &= true.all(axis=0)
            self._any[columns] |= true.any(axis=0)

    def dump(self) -> list[np.ndarray]:
        return [self._all, self._any]

    def merge(self, dump: list[np.ndarray]) -> None:
        self._all &= dump[0]
        self._any |= dump[1]

    def results(self, matrices: int) -> dict[str, np.ndarray]:
        return {"all": self._all.copy(), "any": self._any.copy()}


def _float64_sum(columns: slice) -> BinnedSum:
    return BinnedSum(np, (columns.stop - columns.start,), "float64")


def _cut(length: int, step: int) -> list[slice]:
    return [slice(low, min(low + step, length)) for low in range(0, length, step)]


def _blocks(rows: Rows) -> Iterator[tuple[slice, slice]]:
    """Lines and columns of blocks that fit a core's cache."""
    for columns in _cut(rows.width, _COLUMNS):
        for lines in _cut(rows.n, _BLOCK // (columns.stop - columns.start)):
            yield lines, columns


def _reals(array: np.ndarray) -> np.ndarray:
    """Complex numbers as real ones, twice as many; a view."""
    return array.view(f"f{array.itemsize // 2}") if array.dtype.kind == "c" else array


def _differences(block: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """``block - origin`` in float64, rounded once; of finite numbers ``_FAR`` at most."""
    if block.dtype == np.int64:  # both halves are exact
        high, low = (block >> 32) - (origin >> 32), (block & _LOW) - (origin & _LOW)
        return np.add(high * 2.0**32, low)
    differences: np.ndarray = np.subtract(block, origin, dtype=np.float64)
    # NaN is not below either limit. Products of other types have no such differences.
    if block.dtype == np.float64 and not (differences.max() < _FAR and differences.min() > -_FAR):
        finite = np.isfinite(block) & np.isfinite(origin)
        np.clip(differences, -_FAR, _FAR, out=differences, where=finite)
    return differences


def _variance(sums: np.ndarray, squares: np.ndarray, n: int) -> np.ndarray:
    """``(n Σd² - (Σd)²) / n²`` of the planes of Σd and Σd²."""
    (total, total_low), (square, square_low) = double_double(sums), double_double(squares)
    count = np.array(float(n))
    mine, mine_low = _exact_product(count, square)
    other, other_low = _exact_product(total, total)
    rest = (mine_low + count * square_low) - (other_low + 2 * total * total_low)
    variance = ((mine - other) + rest) / count / count
    return np.where(np.isfinite(square), np.maximum(variance, 0), square)


def _exact_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``a b`` rounded, and what was rounded off (T. J. Dekker, Numer. Math. 18, 1971)."""
    product = a * b
    a_head, b_head = ((x.view(np.int64) & _HEAD).view(np.float64) for x in (a, b))
    a_tail, b_tail = a - a_head, b - b_head
    cross = (a_head * b_head - product) + a_head * b_tail + a_tail * b_head
    return product, cross + a_tail * b_tail


def _complex_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a b`` in single operations: NumPy's may fuse some of them, depending on the place."""
    product = np.empty_like(a)
    np.subtract(a.real * b.real, a.imag * b.imag, out=product.real)
    np.add(a.real * b.imag, a.imag * b.real, out=product.imag)
    return product


def _bounded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a b``, at most ``_HUGE``: so it never becomes infinite, and 0 times it is 0."""
    product: np.ndarray = np.clip(a * b, -_HUGE, _HUGE)
    return product


def _refuse_overflow(product: np.ndarray, estimate: np.ndarray) -> None:
    """Refuse products modulo 2⁶⁴ that are not the products themselves."""
    # Within 1.5 · 2⁶³, a product that does not fit has come back with the other sign.
    far = np.abs(estimate) >= 1.5 * 2.0**63
    if (far | (np.sign(estimate) != np.sign(product))).any():
        raise InputError(
            "prod: the product of the integer products does not fit int64; save the input as "
            "float64, or leave prod out"
        )
