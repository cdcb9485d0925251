"""The end-to-end proof: a number of every product, followed from the input to the sum.

``l`` and ``r`` are fixed weights, the same for all shards. Of each product there are the
*contribution* ``lᵀ C r``, from the product as computed, the *reference* ``lᵀ A (B r)``, from its
factors (on the device, and on the CPU from the bytes that were first read), and the *mass*
``|l|ᵀ |A| (|B| 1)``, to which rounding is relative. All are added up over batches and shards, and
``lᵀ S r`` of the sum S is what contributions come to. docs/verification.md derives the tolerances.
"""

import math
from typing import Any

import numpy as np

from shardwise.plan.problem import Problem

_UNIT = 2.0**-53
_PAIRWISE = 64
"""More additions than a number meets while NumPy adds up a row (in pairs of blocks of 128)."""


def gamma(n: float, u: float = _UNIT) -> float:
    """γ(n) = n u / (1 - n u): the bound of n roundings (Higham, chapter 3)."""
    return n * u / (1 - n * u)


def smallest(problem: Problem, rows: int) -> float:
    """What underflow may add to the sum of so many numbers, with a wide margin."""
    (m, k), (_, p) = problem.factor_shapes
    return 4 * (rows + 1) * m * (2 * k + p + 1) * float(np.finfo("float64").tiny)


def product_bound(
    problem: Problem, total: np.ndarray, rows: int, bound: tuple[float, float]
) -> float:
    """How far contributions may be from references: Freivalds' tolerance, weighed with ``|l|``.

    ``total`` and ``rows`` are those of `ShardForms`; ``bound`` is the relative and the absolute
    tolerance of an element of ``C r``, see `tolerances.product_tolerance`.
    """
    if total.dtype.kind == "i":
        return 0.0
    m = problem.product_shape[0]
    relative, absolute = bound
    relative = 1.01 * (relative + 2 * gamma(m + _PAIRWISE))
    return relative * float(total[-1]) + rows * m * absolute + smallest(problem, rows)


def reference_bound(problem: Problem, mass: float, rows: int) -> float:
    """How far the CPU's references may be from the device's: both are sums in double precision."""
    (m, k), (_, p) = problem.factor_shapes
    return 2.02 * gamma(m + 2 * k + p + _PAIRWISE) * mass + smallest(problem, rows)


def sum_bound(problem: Problem, size: float) -> float:
    """How far ``lᵀ S r`` may be from all contributions.

    ``size`` is a bound of ``|l|ᵀ |C| |r|`` over all products. Each meets an addition a level of the
    tree.
    """
    (m, p), n = problem.product_shape, problem.matrices
    roundings = 2 * (m + p + _PAIRWISE) + 16 + n.bit_length()
    return 1.01 * gamma(roundings) * size + smallest(problem, n)


def gap(one: Any, other: Any) -> float:
    """How far two numbers are apart, ``|re| + |im|``; of integers 0, or infinite."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind == "i":
        return 0.0 if (one == other).all() else math.inf
    with np.errstate(all="ignore"):
        return float(np.abs(one - other).sum())


def differ(problem: Problem, one: np.ndarray, other: np.ndarray, mass: float, rows: int) -> bool:
    """Whether two references of the same matrices are further apart than their rounding.

    Where one is not finite, nothing is known. Parameters as those of :func:`reference_bound`.
    """
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    return gap(one, other) > reference_bound(problem, mass, rows)
