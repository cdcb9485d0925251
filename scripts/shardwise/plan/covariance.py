"""The offset of a covariance: a row near the mean, without which digits are lost.

It is subtracted from each row before the products; see docs/statistics.md.
"""

import math

import numpy as np

from shardwise.errors import InputError
from shardwise.plan import per_matrix
from shardwise.plan.config import Settings
from shardwise.plan.plan import Covariance
from shardwise.plan.problem import Problem, sum_dtype
from shardwise.plan.stack import Stack, first_rows
from shardwise.units import MIB

UNCENTRED = "offset: none: covariances of columns far from zero lose digits; auto keeps them"
FIRST_BYTES = 64 * MIB  # of the rows whose mean is the offset: it stays when the stack grows


def plan(
    settings: Settings, stack: Stack, problem: Problem, weights: np.ndarray | None
) -> Covariance | None:
    """What the plan says of ``covariance: true``, or None; InputError if the input rules it out."""
    if not settings.covariance:
        return None
    if "complex" in stack.dtype and settings.product == "A.T @ A":
        raise InputError(f"covariance: of {stack.dtype} needs the conjugate: use product: A.H @ A")
    if weights is not None and weights.min() < 0:
        told = f"a weight of {weights.min()} for matrix {weights.argmin()}"
        raise InputError(f"covariance: rows cannot count fewer than 0 times: {told}; correct it")
    number, divisor = count_rows(problem, weights, settings.ddof)
    if divisor <= 0:
        told = f"the divisor for {number:g} rows would be {divisor:g}"
        raise InputError(f"ddof: {told}; use a smaller ddof, or more rows")
    if settings.offset == "none" or "int" in stack.dtype:  # sums of whole numbers lose no digits
        return Covariance(None, settings.ddof)
    dtype, width = np.dtype(stack.dtype).newbyteorder("<"), stack.shape[1]
    with np.errstate(all="ignore"):
        if settings.offset == "auto":
            most = max(1, FIRST_BYTES // (width * dtype.itemsize))
            rows, wide = first_rows(settings, stack, weights, most), sum_dtype(stack.dtype)
            rows = rows[np.isfinite(rows).all(axis=1)]  # tasks deal with NaN and Inf
            row: np.ndarray = (rows.sum(axis=0, dtype=wide) / len(rows)).astype(dtype)
            row[~np.isfinite(row)] = 0  # the formula is exact for any offset
        else:
            own = per_matrix.open_array("offset", settings.offset)
            fits = own.dtype.kind in ("fiuc" if "complex" in stack.dtype else "fiu")
            if not (own.shape == (width,) and fits and np.isfinite(row := own.astype(dtype)).all()):
                found = f"{settings.offset} is {own.shape} of {own.dtype}"
                cure = f"save a finite number for each column, {width} in all, as {stack.dtype}"
                raise InputError(f"offset: {found}; {cure}")
    return Covariance(row.tobytes().hex(), settings.ddof)


def count_rows(problem: Problem, weights: np.ndarray | None, ddof: int) -> tuple[float, float]:
    """The number of rows, each counted by weight, and the divisor of `numpy.cov` (``aweights``)."""
    rows, height = problem.matrices * problem.left[0], problem.left[0]
    if weights is None:
        return rows, rows - ddof
    total, largest = height * math.fsum(weights), float(weights.max())
    if not total:
        return 0.0, 0.0
    parts = weights / largest  # squares of the weights themselves might overflow
    return total, total - ddof * largest * (math.fsum(parts * parts) / math.fsum(parts))
