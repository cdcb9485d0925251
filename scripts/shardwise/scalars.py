"""Scalars of ``summary.json``: statistics over all elements of all products.

They are formed from the results of :mod:`~shardwise.statistics`, a part of the elements at a time.
Sums are exact until the end, so neither the parts nor their order change a bit.
"""

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

_LOW = 0xFFFFFFFF
_EXPONENTS = 2047  # of finite float64, biased; the row behind them counts NaN, +Inf and -Inf
_ONE = 1075  # the biased exponent whose last bit is worth 1


class Scalars:
    """Count, sum, mean, std, min, max and where these lie, as far as results give them.

    Sum and mean need ``sum``; std ``sum`` and ``std``; min and max need themselves and ``argmin``
    or ``argmax``. Of elements e with the sums S_e and variances V_e over N products each,

        variance = Σ V_e / E + Σ (S_e / N)² / E - (Σ S_e / (N E))²

    which is (V_e + (mean_e - mean)²) on average. It is a fraction of whole numbers, rounded once.
    Of equal extremes that of the lowest matrix counts, then that of the first element in C order.

    Parameters
    ----------
    matrices
        Number of products N.
    columns
        Columns of the result.
    """

    def __init__(self, matrices: int, columns: int) -> None:
        self._matrices, self._columns = matrices, columns
        self._elements, self._kind = 0, "f"
        self._moments: dict[str, Moments] = {}
        self._extremes: dict[str, list] = {}

    def add(self, results: Mapping[str, np.ndarray], low: int) -> None:
        """Add the results of the elements from ``low`` on; each element comes once.

        Parameters
        ----------
        results
            Arrays ``(width,)`` by the names of statistics; those of no use here are passed over.
        low
            Index of the first element in the flat result.
        """
        self._elements += len(next(iter(results.values())))
        if "sum" in results:
            total = results["sum"]
            self._kind = total.dtype.kind
            self._moment("real").add(total.real)
            if self._kind == "c":
                self._moment("imag").add(total.imag)
        if "std" in results:
            self._moment("std").add(results["std"])
        for name in ("min", "max"):
            if name in results:
                self._challenge(name, _extreme(name, results[name], results[f"arg{name}"], low))

    def _moment(self, name: str) -> "Moments":
        return self._moments.setdefault(name, Moments())

    def _challenge(self, name: str, found: list) -> None:
        held = self._extremes.get(name)
        if held is None or _rank(name, found) < _rank(name, held):
            self._extremes[name] = found

    def dump(self) -> list[np.ndarray]:
        """The state as C-contiguous arrays."""
        facts = [self._elements, self._kind, list(self._moments), self._extremes]
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        return [text, *(moments.table for moments in self._moments.values())]

    def merge(self, dump: list[np.ndarray]) -> None:
        """Add what the dump of another state holds."""
        text, *tables = dump
        elements, kind, names, extremes = json.loads(text.tobytes())
        if elements:
            self._kind = kind
        self._elements += elements
        for name, table in zip(names, tables, strict=True):
            self._moment(name).merge(table)
        for name, found in extremes.items():
            self._challenge(name, found)

    def summary(self) -> dict[str, Any]:
        """The scalars as JSON has them.

        Complex numbers are ``[real, imaginary]``; sums of integers are whole numbers of any size;
        what is not finite is the text ``NaN``, ``Infinity`` or ``-Infinity``.
        """
        count = self._elements * self._matrices
        told: dict[str, Any] = {"count": count}
        parts = [self._moments[name] for name in ("real", "imag") if name in self._moments]
        if parts:
            whole = self._kind == "i"
            told["sum"] = _told([int(p.sum()) if whole else _number(p.sum()) for p in parts])
            told["mean"] = _told([_number(p.sum(), count) for p in parts])
            if "std" in self._moments:
                told["std"] = _json(self._std(parts, count))
        told |= {name: _json(value) for name, (value, _, _) in self._extremes.items()}
        if self._extremes:
            told["where"] = {name: self._place(*e[1:]) for name, e in self._extremes.items()}
        return told

    def _std(self, parts: list["Moments"], count: int) -> float:
        within = self._moments["std"]
        if within.sum() == math.inf:
            return math.inf  # whatever the means add to it
        if not all(isinstance(m.sum(), Fraction) for m in (*parts, within)):
            return math.nan
        n = self._matrices
        spread = within.squares() + sum(p.squares() for p in parts) / n**2
        return _root(spread / self._elements - sum((p.sum() / count) ** 2 for p in parts))

    def _place(self, matrix: int, element: int) -> dict[str, int]:
        row, column = divmod(element, self._columns)
        return {"matrix": matrix, "row": row, "column": column}


class Moments:
    """Exact Σx and Σx² of float64 or int64 numbers: whole numbers for each exponent.

    A row of the table belongs to an exponent e, where x = m 2^(e - 1075) with a whole number m of
    64 bits or less. Columns 0 and 1 are the low and the high 32 bits of Σm, columns 2 to 5 the
    digits of 32 bits of Σm². Only the highest may have grown beyond 32 bits.

    Attributes
    ----------
    table
        int64, ``(2048, 6)``.
    """

    def __init__(self) -> None:
        self.table = np.zeros((_EXPONENTS + 1, 6), np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add numbers: one-dimensional, float64 or int64, fewer than 2²⁹ at a time."""
        bits = np.ascontiguousarray(values).view(np.uint64)
        bits.flags.writeable = False  # always, so that the loop is compiled for one type
        _tally()(self.table, bits, values.dtype.kind == "f")
        self._carry()

    def merge(self, table: np.ndarray) -> None:
        """Add the table of others."""
        self.table += table
        self._carry()

    def _carry(self) -> None:
        finite = self.table[:_EXPONENTS]
        for column in (0, 2, 3, 4):
            finite[:, column + 1] += finite[:, column] >> 32
            finite[:, column] &= _LOW

    def sum(self) -> Fraction | float:
        """Σx; a float where it is NaN or infinite."""
        nan, plus, minus = self.table[_EXPONENTS, :3]
        if nan or (plus and minus):
            return math.nan
        if plus or minus:
            return math.inf if plus else -math.inf
        return self._whole(slice(0, 2), 1)

    def squares(self) -> Fraction:
        """Σx² of the finite numbers."""
        return self._whole(slice(2, 6), 2)

    def _whole(self, columns: slice, power: int) -> Fraction:
        total = 0
        for exponent in np.flatnonzero(self.table[:_EXPONENTS].any(axis=1)).tolist():
            digits = enumerate(self.table[exponent, columns].tolist())
            total += sum(digit << 32 * place for place, digit in digits) << power * exponent
        return Fraction(total, 1 << power * _ONE)


@cache
def _tally() -> Callable:
    from numba import types  # here, as it takes half a second

    from shardwise import compiled

    bits = types.Array(types.uint64, 1, "C", readonly=True)
    signature = types.Array(types.int64, 2, "C"), bits, types.boolean
    return compiled.loop(_fill_table, signature)


def _fill_table(table: np.ndarray, bits: np.ndarray, real: bool) -> None:
    """Add numbers, as their bits, to a table of :class:`Moments`."""
    # Unsigned until the end: numba makes float64 of what is half signed, and looks whether a signed
    # index is negative.
    low, half, one = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(1)
    mantissa, hidden = np.uint64((1 << 52) - 1), np.uint64(1 << 52)
    last = np.uint64(2047)
    for i in range(bits.size):
        x = bits[np.uint64(i)]
        sign = np.uint64(0) - (x >> np.uint64(63))
        row, m = np.uint64(1075), (x ^ sign) - sign
        if real:
            row, m = (x >> np.uint64(52)) & last, x & mantissa
            if row == last:
                table[row, 0 if m else 2 if sign else 1] += 1
                continue
            if row:
                m |= hidden
            else:
                row = one  # subnormal numbers lie on the grid of the smallest normal ones
        a, b = m >> half, m & low
        bb, ab, aa = b * b, a * b, a * a
        table[row, 0] += np.int64((b ^ sign) - sign)
        table[row, 1] += np.int64((a ^ sign) - sign)
        table[row, 2] += np.int64(bb & low)
        table[row, 3] += np.int64((bb >> half) + ((ab & low) << one))
        table[row, 4] += np.int64((aa & low) + ((ab >> half) << one))
        table[row, 5] += np.int64(aa >> half)


def _extreme(name: str, values: np.ndarray, matrices: np.ndarray, low: int) -> list:
    """Value, matrix and element of the extreme of some elements."""
    best = getattr(values, name)()
    level = np.flatnonzero(np.isnan(values) if np.isnan(best) else values == best)
    first = level[matrices[level].argmin()]
    return [(best + values.dtype.type(0)).item(), int(matrices[first]), low + int(first)]


def _rank(name: str, extreme: list) -> tuple:
    """What is less for the better extreme: NaN first, then the value, the matrix, the element."""
    value, matrix, element = extreme
    nan = value != value  # noqa: PLR0124
    signed = value if name == "min" else -value
    return (not nan, 0 if nan else signed, matrix, element)


def _number(total: Fraction | float, count: int = 1) -> float:
    """``total / count``, rounded once."""
    try:
        return float(total / count)
    except OverflowError:
        return math.copysign(math.inf, total)


def _root(square: Fraction) -> float:
    """The square root of a fraction, also of one that no float64 holds."""
    half = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** half), half)


def _told(parts: list) -> Any:
    """A real number as it is, a complex one as a list."""
    told = [_json(part) for part in parts]
    return told if len(told) > 1 else told[0]


def _json(value: float) -> float | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
