"""The offset of a covariance: a row near the mean, without which digits are lost.

Sums of squares of numbers far from zero hold little but their mean. So a fixed row is subtracted
from each row before the products, and the formula takes it into account exactly. See
docs/statistics.md for how much that saves.
"""

import base64
import math
from typing import Any

import numpy as np

from shardwise.errors import InputError, short
from shardwise.files import synthetic
from shardwise.files.extents import OpenFiles
from shardwise.plan.config import Settings
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Covariance, Stack
from shardwise.plan.problem import Problem, check_covariance, sum_dtype
from shardwise.plan.stack import StackReader
from shardwise.units import MIB

FIRST_BYTES = 64 * MIB
"""Of the first rows, whose mean is the offset: the same when the stack grows beyond them."""


def plan(
    settings: Settings, stack: Stack, problem: Problem, weights: np.ndarray | None
) -> Covariance | None:
    """What the plan says of ``covariance: true``; None without it.

    ``weights`` are those of the matrices, if there are any.

    Raises
    ------
    InputError
        Where the offset does not fit the input.
    """
    if not settings.covariance:
        return None
    check_covariance(settings.product, stack.dtype)
    if weights is not None and weights.min() < 0:
        raise InputError(
            f"covariance: rows cannot count a negative number of times, but weights has "
            f"{weights.min()} for matrix {weights.argmin()}; correct it"
        )
    rows, divisor = count_rows(problem, weights, settings.ddof)
    if divisor <= 0:
        raise InputError(
            f"ddof: the input has {rows:g} rows{' by their weights' * (weights is not None)}, so "
            f"covariances would be divided by {divisor:g}; use a smaller ddof, or more rows"
        )
    row = _offset(settings, stack)
    text = None if row is None else base64.b64encode(row.tobytes()).decode()
    return Covariance(text, settings.ddof)


def count_rows(problem: Problem, weights: np.ndarray | None, ddof: int) -> tuple[float, float]:
    """The rows, each counted times the weight of its matrix, and what sums are divided by.

    The latter as `numpy.cov` has it with ``aweights``.
    """
    rows, height = problem.matrices * problem.left[0], problem.left[0]
    if weights is None:
        return rows, rows - ddof
    total, squares = (height * math.fsum(each) for each in (weights, weights * weights))
    return total, total - ddof * squares / total if total else 0.0


def _offset(settings: Settings, stack: Stack) -> np.ndarray | None:
    """The offset ``(k,)`` in the dtype of the input, little-endian; None for none."""
    exact = "int" in stack.dtype  # sums of whole numbers lose no digits
    if settings.offset == "none" or (settings.offset == "auto" and exact):
        return None
    if exact:
        raise InputError(
            f"offset: the input is {stack.dtype}, whose sums are exact; remove this key"
        )
    dtype = np.dtype(stack.dtype).newbyteorder("<")
    with np.errstate(all="ignore"):
        if settings.offset != "auto":
            return _own(settings.offset, stack).astype(dtype)
        rows, wide = _first_rows(settings, stack), sum_dtype(stack.dtype)
        rows = rows[np.isfinite(rows).all(axis=1)]  # others may have weight 0, or are found later
        row: np.ndarray = rows.mean(axis=0, dtype=wide).astype(dtype)
    row[~np.isfinite(row)] = 0  # any other number is as right
    return row


def _own(path: str, stack: Stack) -> np.ndarray:
    """The user's own offset."""
    try:
        row: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", "") or error
        raise InputError(
            f"offset: {short(path)} cannot be read ({why}); it must be none, auto or a .npy file "
            f"of {stack.shape[1]} numbers"
        ) from error
    shape, kinds = (stack.shape[1],), "fiuc" if "complex" in stack.dtype else "fiu"
    if not isinstance(row, np.ndarray) or row.shape != shape or row.dtype.kind not in kinds:
        what = f"{row.shape} of {row.dtype}" if isinstance(row, np.ndarray) else "several arrays"
        raise InputError(
            f"offset: {path} is {what}, but rows of the input have {shape[0]} numbers of "
            f"{stack.dtype}; save one number for each column"
        )
    with np.errstate(all="ignore"):
        if not np.isfinite(row.astype(stack.dtype)).all():
            raise InputError(
                f"offset: {path} holds NaN or Inf, or a number that is too large for "
                f"{stack.dtype}; correct it"
            )
    return row


def _first_rows(settings: Settings, stack: Stack) -> np.ndarray:
    """The first rows ``(n, k)`` of the stack, of all matrices one below the other."""
    height, width = stack.shape
    dtype = np.dtype(stack.dtype).newbyteorder("<")
    most = max(1, FIRST_BYTES // (width * dtype.itemsize))
    rows = np.empty((min(most, stack.matrices * height), width), dtype)
    if settings.input is None:  # it need not be on the disk yet
        recipe = settings.synthetic
        for first in range(0, len(rows), height):
            one = synthetic.matrix(recipe["seed"], first // height, recipe["dim"], dtype)
            rows[first : first + height] = one[: len(rows) - first]
        return rows
    inputs = InputFiles()
    reader = StackReader(stack.sources, stack.shape, stack.dtype, inputs)
    reader.read_into(OpenFiles(inputs.compare), rows.reshape(-1).view(np.uint8), 0)
    return rows
