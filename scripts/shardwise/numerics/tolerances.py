"""Vectors of Freivalds' check, and bounds on rounding, which docs/internals/proofs.md derives."""

import numpy as np

from shardwise.numerics.end_to_end import weights

VECTORS = 4
# Stored dtypes for which one row of each group of products is computed again. In double precision
# errors below the tolerance are too small to matter, and integers have no tolerance.
CLOSER_LOOK = ("float16", "float32", "complex64")


def vectors(seed: int, length: int, integer: bool) -> np.ndarray:
    """Vectors that check a product, as columns ``(length, VECTORS)``.

    All but the last are random, ±1 or any int64; each misses a wrong product with probability 1/2
    at most. The last is the r of `end_to_end.weights`, whatever the seed.
    """
    random, fixed = np.random.default_rng(seed), weights("r", length, integer)[:, np.newaxis]
    shape = (length, VECTORS - 1)
    low, high = (-(2**63), 2**63 - 1) if integer else (0, 1)
    free = random.integers(low, high, shape, endpoint=True)
    return np.concatenate([free if integer else 1.0 - 2.0 * free, fixed], axis=1)


def product_tolerance(k: int, p: int, stored: str, compute: str) -> tuple[float, float]:
    """Bound of ``|C r - A (B r)|`` for an honest C, as ``(relative, absolute)``.

    The bound of row i is ``relative * (|A| |B| 1)_i + absolute``, with moduli ``|re| + |im|``. With
    ``p = 1`` it is the bound of a single element of C.

    Parameters
    ----------
    k, p
        Length of the inner products, and number of columns of the product.
    stored, compute
        Dtype of factors and products, and the arithmetic: a dtype, ``tf32`` or ``tf32x3``.
    """
    parts, in_store = 2 if stored.startswith("complex") else 1, np.finfo(stored)
    in_product = np.finfo("float32" if compute in ("tf32", "tf32x3") else compute)
    # First how far a product may be off, relative to the product of moduli.
    if compute == "tf32x3":
        product = _split_bound(k, parts)
    else:
        # Tensor cores cut off what lies below the last bit of the largest of b ≥ 4 products (Fasi
        # et al. 2021): at most (b + 2) / b · 2⁻²³ ≤ 1.5 · 2⁻²³ per product, which 2⁻²² covers.
        on_tensor_cores = compute == "tf32" or stored == "float16"
        product = parts * k * (2.0**-22 if on_tensor_cores else float(in_product.eps) / 2)
        short = 2.0**-10 if compute == "tf32" else 0.0
        product += (2 * short + short**2) * (1 + product)
        if in_store.bits < in_product.bits or short:
            product = product * (1 + float(in_store.eps) / 2) + float(in_store.eps) / 2
    check = (parts * k + 2 * p) * float(np.finfo("float64").eps) / 2  # the two sides of the check
    # 1 % covers the products of these small numbers and the rounding of the moduli themselves.
    relative = 1.01 * (product + check)
    tiny = (3 if compute == "tf32x3" else 1) * 2 * parts * k * float(in_product.tiny)
    return relative, p * (tiny + float(in_store.smallest_subnormal))


def split_chunk(k: int, parts: int) -> int:
    """Length of the chunks of an inner product of length k that tensor cores add up (``tf32x3``).

    They cut off digits, so shorter chunks are more exact, and slower. Complex terms have two parts.
    """
    return (512 if k >= 2048 else 256 if k >= 1024 else 128) // parts


def _split_bound(k: int, parts: int) -> float:
    """How far ``tf32x3`` may be off: the terms of Ootomo and Yokota (2022, section 3) as bounds.

    The bound adds the sums in tensor cores (one chunk of products h h, and 2 k small products), one
    rounding for each sum that is added to the others, and the digits that are left out, 3 · 2⁻²².
    """
    unit, chunk = 2.0**-22, split_chunk(k, parts)
    in_sums = parts * unit * (min(k, chunk) + 2 * k / 2048)
    return in_sums + (-(-k // chunk) + 1) * unit / 2 + 3 * unit
