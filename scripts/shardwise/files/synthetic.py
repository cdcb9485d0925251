"""The matrices of the synthetic stack: input for a first run, and for benchmarks."""

import numpy as np

INTEGER_LIMIT = 9


def matrix(seed: int, index: int, dim: int, dtype: np.dtype) -> np.ndarray:
    """Matrix ``index`` of the synthetic stack, shape ``(dim, dim)``."""
    random = np.random.default_rng([seed, index])
    if dtype.kind in "iu":
        return random.integers(-INTEGER_LIMIT, INTEGER_LIMIT, (dim, dim), endpoint=True).astype(
            dtype
        )
    real = random.standard_normal((dim, dim))
    if dtype.kind == "c":
        return (real + 1j * random.standard_normal((dim, dim))).astype(dtype)
    return real.astype(dtype)
