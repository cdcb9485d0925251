"""The end-to-end proof: a number of every product, followed from the input to the sum.

``l`` and ``r`` are fixed weights, the same for all shards. Each product has three *forms*: the
*contribution* ``lᵀ C r``, from the product as computed; the *reference* ``lᵀ A (B r)``, from its
factors as they lie on the device; and the *mass* ``|l|ᵀ |A| (|B| 1)``, to which rounding is
relative. Each is summed over batches and shards. Up to rounding, ``lᵀ S r`` of the sum S must equal
the sum of the contributions. docs/internals/proofs.md derives the bounds.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from shardwise.plan.problem import Problem

# Identifies the weights. Receipts do not name it, and forms of different weights must never be
# compared: whoever changes it raises ALGORITHM["multiply"].
SEED = 0x5EED
_GOLDEN = 0x9E3779B97F4A7C15
_SIDES = {"l": 0, "r": 1 << 62}
# Bounds the additions that one number goes through when a row is summed: pairwise in blocks of 128
# numbers by NumPy, `_TOGETHER` numbers at a time by a GPU.
_PAIRWISE, _TOGETHER = 64, 256


def weights(side: str, length: int, integer: bool) -> np.ndarray:
    """The first weights ``(length,)`` of a side, ``l`` or ``r``.

    Their signs are random, their moduli at least 1/2 and below 1; for integers random odd int64.
    Each is a hash of its index by the mixer of splitmix64 (G. Steele, D. Lea and C. Flood, "Fast
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


def _gamma(n: float) -> float:
    """γ(n) = n u / (1 - n u): the bound of n roundings (Higham, chapter 3)."""
    return n * 2.0**-53 / (1 - n * 2.0**-53)


def _smallest(problem: Problem, rows: float) -> float:
    """Bound of what underflow adds to a sum of forms over ``rows`` products, with a wide margin."""
    (_, k), (m, p) = problem.factor_shapes[0], problem.product_shape
    return 4 * (rows + 1) * m * (2 * k + p + 1) * float(np.finfo("float64").tiny)


def product_bound(
    problem: Problem, total: np.ndarray, rows: float, bound: tuple[float, float]
) -> float:
    """How far contributions may be from references: Freivalds' tolerance, weighed with ``|l|``.

    ``total`` is the sum of the forms. ``rows`` is the number of products, one of a weight beyond
    ±1 counted ``|weight|`` times. ``bound`` is the relative and the absolute tolerance of an
    element of ``C r``, see `tolerances.product_tolerance`.
    """
    if total.dtype.kind == "i":
        return 0.0
    m = problem.product_shape[0]
    relative, absolute = bound
    relative = 1.01 * (relative + 2 * _gamma(m + _PAIRWISE))
    return relative * float(total[-1]) + rows * m * absolute + _smallest(problem, rows)


def sum_bound(problem: Problem, size: float) -> float:
    """How far ``lᵀ S r`` may be from the sum of all contributions.

    ``size`` bounds ``|l|ᵀ |C| |r|``, summed over all products. A product goes through one addition
    per level of the tree, and perhaps one multiplication by its weight, as its form does.
    """
    (m, p), n = problem.product_shape, problem.matrices
    roundings = 2 * (m + p + _PAIRWISE) + 18 + n.bit_length()
    return 1.01 * _gamma(roundings) * size + _smallest(problem, n)


def gap(one: Any, other: Any) -> float:
    """The distance of two numbers, ``|re| + |im|``; of integers 0 if they are equal, else ∞."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind == "i":
        return 0.0 if (one == other).all() else math.inf
    with np.errstate(all="ignore"):
        return float(np.abs(one - other).sum())


def add_up(xp: Any, forms: Any, weights: Any = None) -> Any:
    """Sum forms, which have a column per product, times its weight ``(n,)`` if there are weights.

    Forms are float64 ``(2 q + 1, n)``: contribution and reference, of q numbers each (2 if complex,
    else 1), then the mass. For integers they are int64 ``(2, n)``, without a mass.
    """
    if weights is not None:
        forms[:-1] *= weights
        forms[-1] *= abs(weights)
    while (n := forms.shape[1]) > _TOGETHER:
        whole = n - n % _TOGETHER
        sums = forms[:, :whole].reshape(len(forms), -1, _TOGETHER).sum(axis=2)
        forms = sums if whole == n else xp.concatenate([sums, forms[:, whole:]], axis=1)
    return forms.sum(axis=1)


def summed(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of rows: integers modulo 2⁶⁴, others rounded once; all NaN if any is not finite."""
    table = np.array(rows)
    if table.dtype.kind == "i":
        total: np.ndarray = table.sum(axis=0)
        return total
    if np.isfinite(table).all():
        with suppress(OverflowError):
            return np.array([math.fsum(column) for column in table.T])
    return np.full(table.shape[1], np.nan)


class SumForm:
    """``lᵀ S r`` of the sum ``(m, p)``, from runs of its elements: each once, on any one rank."""

    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        integer = "int" in dtype
        self._left, self._right = weights("l", shape[0], integer), weights("r", shape[1], integer)
        self._dtype = "int64" if integer else "float64"
        self.runs: list[np.ndarray] = []  # the form of each run; rank 0 adds those of other ranks

    def add(self, elements: np.ndarray, low: int) -> None:
        """Add the elements ``(width,)`` from number ``low`` of the flat result on."""
        width = len(self._right)
        first, before = divmod(low, width)
        rows = -(-(before + len(elements)) // width)
        block = np.zeros((rows, width), elements.dtype)
        block.reshape(-1)[before : before + len(elements)] = elements
        with np.errstate(all="ignore"):
            form = np.atleast_1d(self._left[first : first + rows] @ (block @ self._right))
        self.runs.append(form.view(self._dtype))

    def value(self) -> np.ndarray:
        """The form of all elements added so far: ``(1,)``, or ``(2,)`` if complex."""
        return summed(self.runs)
