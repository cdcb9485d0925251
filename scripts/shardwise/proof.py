"""Freivalds' check: is ``C = A @ B``, in O(d²) work instead of O(d³).

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. The tolerance
follows N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapter 3: it
bounds the rounding of an honest product computed in any order, so an honest product never fails.
"""

from typing import Any

import numpy as np

VECTORS = 4
"""Random ±1 vectors a product is checked with; each misses a wrong product with at most 1/2."""


def vectors(seed: int, length: int, integer: bool) -> np.ndarray:
    """Random vectors as columns, shape ``(length, VECTORS)``.

    ±1 for floating point; any int64 for integers, whose check is exact modulo 2⁶⁴.
    """
    random = np.random.default_rng(seed)
    if integer:
        return random.integers(
            -(2**63), 2**63 - 1, (length, VECTORS), dtype=np.int64, endpoint=True
        )
    return 1.0 - 2.0 * random.integers(0, 2, (length, VECTORS))


def residual(xp: Any, left: Any, right: Any, product: Any, signs: Any, compute: str) -> Any:
    """How far each product is from ``left @ right``, in units of the tolerance.

    Parameters
    ----------
    xp
        ``numpy`` or ``cupy``.
    left, right, product
        Stacks ``(n, m, k)``, ``(n, k, p)`` or ``(k, p)``, and ``(n, m, p)``.
    signs
        What :func:`vectors` returned for ``p``.
    compute
        Name of the dtype in which the product was accumulated.

    Returns
    -------
    array of float64, shape ``(n,)``
        At most 1 for an honest product; above 1, or NaN, for a wrong one.
    """
    if product.dtype.kind == "i":
        wrong = product @ signs != left @ (right @ signs)
        return xp.where(wrong.any(axis=(1, 2)), np.inf, 0.0)
    wide = xp.complex128 if product.dtype.kind == "c" else xp.float64
    a, b, c = (x.astype(wide, copy=False) for x in (left, right, product))
    relative, absolute = tolerance(left.shape[-1], b.shape[-1], str(product.dtype), compute)
    a, b, c, scale = _scaled(xp, a, b, c)
    gap = xp.abs(c @ signs - a @ (b @ signs))
    ones = xp.ones((b.shape[-1], 1))
    size = xp.abs(a) @ (xp.abs(b) @ ones)
    floor = xp.maximum(absolute * scale, np.finfo("float64").tiny)
    return (gap / (relative * size + floor)).max(axis=(1, 2))


def _scaled(xp: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any, Any]:
    """Factors of moduli about 1, the product to match, and its scale ``(n, 1, 1)``.

    All by powers of two, so without rounding: the sums of the check stay in range where the
    product itself only just does.
    """
    ea, eb = _exponent(xp, a), _exponent(xp, b)
    root = xp.exp2(-(ea + eb) / 2)  # applied twice: the whole factor may be out of range
    return a * xp.exp2(-ea), b * xp.exp2(-eb), c * root * root, root * root


def _exponent(xp: Any, block: Any) -> Any:
    """An even power of two about as large as the largest modulus of each matrix."""
    largest = xp.abs(block).max(axis=(-2, -1), keepdims=True)
    _, exponent = xp.frexp(largest)
    # Even, so that half the sum of two is whole; within the range whose powers are exact.
    return xp.clip(2 * (exponent // 2), -1000, 1000).astype(xp.float64)


def tolerance(k: int, p: int, stored: str, compute: str) -> tuple[float, float]:
    """Bound of ``|C r - A (B r)|`` for an honest C, as ``(relative, absolute)``.

    The bound of row i is ``relative * (|A| |B| 1)_i + absolute``. An inner product of length n
    computed with unit roundoff u, in any order, is off by at most ``γ(n, u) = n u / (1 - n u)``
    times the same product of moduli. Three such errors meet: the product itself in ``compute``
    (and its rounding to ``stored``), and the two sides of the check in double precision.
    Complex arithmetic multiplies γ by at most 4 (Higham, lemma 3.5). Underflow, or a device that
    flushes subnormal numbers, adds at most the smallest normal number an operation.
    """
    factor = 4.0 if stored.startswith("complex") else 1.0
    in_product, in_store, in_check = np.finfo(compute), np.finfo(stored), np.finfo("float64")
    own = factor * _gamma(k, float(in_product.eps) / 2)
    if stored != compute:
        own = own * (1 + float(in_store.eps) / 2) + float(in_store.eps) / 2
    check = factor * (_gamma(k, float(in_check.eps) / 2) + 2 * _gamma(p, float(in_check.eps) / 2))
    # 1 % covers the products of these small numbers and the rounding of the moduli themselves.
    relative = 1.01 * (own + check)
    absolute = p * (2 * k * float(in_product.tiny) + float(in_store.smallest_subnormal))
    return relative, max(absolute, float(in_check.tiny))


def _gamma(n: int, u: float) -> float:
    return n * u / (1 - n * u)
