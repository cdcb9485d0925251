"""What one of Freivalds' checks is of, its random vectors, and its bounds on rounding."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.numerics.end_to_end import weights
from shardwise.plan.problem import Shape, factor_shapes

VECTORS = 4
"""Vectors a product is checked with: random ±1, each of which misses a wrong product with at most
1/2, and last the weights of the end-to-end proof."""

TF32_FLOOR = float(np.finfo("float32").tiny)
"""Below this, rounding to the 11 bits of tf32 is no longer relative: moduli count as this much."""

_TINY = float(np.finfo("float64").tiny)


def vectors(seed: int, length: int, integer: bool) -> np.ndarray:
    """Vectors as columns, shape ``(length, VECTORS)``: ±1, for integers any int64.

    The last does not depend on the seed: it is the r of :func:`end_to_end.weights`.
    """
    random, fixed = np.random.default_rng(seed), weights("r", length, integer)[:, np.newaxis]
    shape = (length, VECTORS - 1)
    low, high = (-(2**63), 2**63 - 1) if integer else (0, 1)
    free = random.integers(low, high, shape, endpoint=True)
    return np.concatenate([free if integer else 1.0 - 2.0 * free, fixed], axis=1)


def product_tolerance(k: int, p: int, stored: str, compute: str) -> tuple[float, float]:
    """Bound of ``|C r - A (B r)|`` for an honest C, as ``(relative, absolute)``.

    The bound of row i is ``relative * (|A| |B| 1)_i + absolute``, with moduli ``|re| + |im|``;
    docs/internals/proofs.md derives it. With ``p = 1`` it is the bound of a single element of C.

    The moduli of r are at most 1. Products of the last vector with subnormal elements of B are
    rounded, by 2⁻¹⁰⁷⁵ at most, and A may be large; so ``|B| 1`` has to count as more by the
    smallest normal number for each element of a row.

    Parameters
    ----------
    k, p
        Length of the inner products, and number of columns of the product.
    stored
        Name of the dtype of factors and products.
    compute
        Name of the dtype in which products were accumulated; or ``tf32`` or ``tf32x3``.
    """
    product = _product_bound(k, stored, compute)
    in_product, in_store = _accumulator(compute), np.finfo(stored)
    parts = _parts(stored)
    check = (parts * k + 2 * p) * float(np.finfo("float64").eps) / 2  # the two sides of the check
    # 1 % covers the products of these small numbers and the rounding of the moduli themselves.
    relative = 1.01 * (product + check)
    sums = 3 if compute == "tf32x3" else 1
    tiny = sums * 2 * parts * k * float(in_product.tiny)
    absolute = p * (tiny + float(in_store.smallest_subnormal))
    return relative, max(absolute, _TINY)


def _product_bound(k: int, stored: str, compute: str) -> float:
    """How far a product may be off, relative to the product of moduli.

    An inner product of length k with unit roundoff u is off by at most ``k u``, in any order
    (Jeannerod and Rump 2013); complex, ``2 k u``. Tensor cores cut off what lies below the last bit
    of the largest of b ≥ 4 products (Fasi et al. 2021): ``(b + 2) / b · 2⁻²³ ≤ 1.5 · 2⁻²³`` for
    each, so u is 2⁻²² for them. tf32 takes both factors to 11 bits, perhaps by truncation, each off
    by less than ``t = 2⁻¹⁰``.
    """
    if compute == "tf32x3":
        return _split_bound(k, _parts(stored))
    in_product, in_store = _accumulator(compute), np.finfo(stored)
    tensor_cores = compute == "tf32" or stored == "float16"
    bound = _parts(stored) * k * (2.0**-22 if tensor_cores else float(in_product.eps) / 2)
    short = 2.0**-10 if compute == "tf32" else 0.0
    bound += (2 * short + short**2) * (1 + bound)
    if in_store.bits < in_product.bits or short:
        bound = bound * (1 + float(in_store.eps) / 2) + float(in_store.eps) / 2
    return bound


def split_chunk(k: int, parts: int) -> int:
    """How long inner products of length k are that tensor cores add up at once under ``tf32x3``.

    They cut off digits, so of numbers of one sign the error grows with the length, where float32's
    grows with its root. Shorter chunks are more exact and slower. Measured on an H200 at k = 4096:
    positive numbers were off by 3.5e-6 at most in chunks of 512, and by 4.8e-6 in float32. A term
    of a complex product has two parts.
    """
    return (512 if k >= 2048 else 256 if k >= 1024 else 128) // parts


def _split_bound(k: int, parts: int) -> float:
    """How far ``tf32x3`` may be off: the terms of Ootomo and Yokota (2022, section 3) as bounds.

    A factor is ``a = h + l / 2048 + e``. Each part is rounded to nearest to 11 bits, so ``|l| ≤
    |a|`` and ``|e| ≤ 2⁻²² |a|``; left out are ``e b``, ``a e`` and ``l l / 2048²``, each within
    2⁻²². Tensor cores add a chunk of products h h before the next sum begins, off by u = 2⁻²² for
    each, and the two sums of k small ones, off by u / 2048 for each. Then the sums are added up, by
    one rounding each.
    """
    unit, chunk = 2.0**-22, split_chunk(k, parts)
    in_sums = parts * unit * (min(k, chunk) + 2 * k / 2048)
    return in_sums + (-(-k // chunk) + 1) * unit / 2 + 3 * unit


def _accumulator(compute: str) -> np.finfo[Any]:
    return np.finfo("float32" if compute in ("tf32", "tf32x3") else compute)


def _parts(dtype: str) -> int:
    return 2 if dtype.startswith("complex") else 1


CLOSER_LOOK = ("float16", "float32", "complex64")
"""Stored dtypes of which one row of each group of products is computed again. In double precision
what the tolerance leaves unseen is of no interest, and integers have none."""


@dataclass(frozen=True)
class CheckSpec:
    """Which products are checked, and how.

    Attributes
    ----------
    left, right
        Shapes of one stored A and one stored B; None if B is made from A.
    dtype, compute
        Names of the dtype of the stacks, and of the one in which products were accumulated:
        ``float32`` for float16; ``tf32`` and ``tf32x3`` are known too.
    group
        Matrices checked at once; a call with more checks them group by group. On a GPU each takes
        about 40 bytes (complex: 72) for every row or column of A and of the product.
    column_sums
        Whether the last row of each product is the sum of the rows of the right factor: what the
        left one would make with a last row of ones.
    """

    product: str
    left: tuple[int, int]
    right: tuple[int, int] | None
    dtype: str
    compute: str
    seed: int
    group: int
    column_sums: bool = False

    @property
    def integer(self) -> bool:
        """Whether the check is exact."""
        return np.dtype(self.dtype).kind in "iu"

    @property
    def _shapes(self) -> tuple[Shape, Shape]:
        return factor_shapes(self.product, self.left, self.right)

    @property
    def inner(self) -> int:
        """Length of the inner products."""
        return self._shapes[0][1]

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return self._shapes[1][1]

    @property
    def bound(self) -> tuple[float, float]:
        """Relative and absolute :func:`tolerance`; 0 for integers."""
        if self.integer:
            return 0.0, 0.0
        return product_tolerance(self.inner, self.columns, self.dtype, self.compute)

    @property
    def scaled_bound(self) -> tuple[float, float]:
        """The same for vectors scaled by :attr:`scale`."""
        relative, absolute = self.bound
        return relative, max(absolute * self.scale, _TINY)

    @property
    def close(self) -> tuple[float, float] | None:
        """The tolerance of an element of the row that gets a closer look; None for no such look."""
        if self.dtype not in CLOSER_LOOK:
            return None
        return product_tolerance(self.inner, 1, self.dtype, self.compute)

    @property
    def floor(self) -> float:
        """What moduli count for at least."""
        return TF32_FLOOR if self.compute.startswith("tf32") else 0.0

    @property
    def scale(self) -> float:
        """A power of two by which the vectors, and so all sums of the check, are scaled down.

        In double precision the check could leave the range of float64 where the product does not.
        The terms of a finite product are finite, so moduli add up to 8 k p times the largest number
        at most, complex ones too. In exchange elements of B count as 8 k p times the smallest
        normal number at least (1e-300 at d = 4096): an error in smaller ones may not show.
        """
        if self.dtype not in ("float64", "complex128"):
            return 1.0
        terms = 8 * self.inner * self.columns
        return 2.0 ** -math.ceil(math.log2(terms))

    def signs(self) -> np.ndarray:
        """The vectors that products are multiplied with; scaled, except for integers."""
        whole = vectors(self.seed, self.columns, self.integer)
        return whole if self.integer else whole * self.scale

    @property
    def rows(self) -> int:
        """Rows of a product."""
        return self._shapes[0][0] + self.column_sums

    def left_weights(self) -> np.ndarray:
        """The weights of the rows of a product in the end-to-end proof; the scale is undone."""
        whole = weights("l", self.rows, self.integer)
        return whole if self.integer else whole / self.scale
