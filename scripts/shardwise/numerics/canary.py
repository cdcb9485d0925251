"""A product whose result is known beforehand: it shows in what precision a device multiplies.

A library may compute with fewer digits than requested: cuBLAS has switches that turn float32 into
tf32. In large matrices that error is below the tolerance of the proof (freivalds.py). So before its
first batch a device multiplies matrices with c = 1 + ε on the diagonal and 0 elsewhere, with the
same kernel as the batches. The product must have exactly c² there, rounded to its dtype. It has 1
if ε is lost, and 1 + ε if tf32x3 loses one of its three products.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed, IntegrityError

_GROSS = 2.0**-6
"""A diagonal error of this size or more is not one of precision: even bfloat16 has 8 bits."""

_PIECE = 2**22
"""Elements searched in one call: cupy takes 32 bytes of device memory for each 2048 elements, so
a large product in one call would take more than the plan allows."""


def check(multiply: Callable[[], Any], factors: list[Any], compute: str) -> None:
    """Refuse to go on if products have a lower precision than ``compute``; waits for the device.

    ``multiply`` multiplies the current contents of the factors and returns the products
    ``(n, m, p)``. The factors are C-contiguous stacks, or one matrix for all; they are overwritten.

    Raises
    ------
    IntegrityError
        If the precision is lower.
    DeviceFailed
        If the product is wrong by more than a lower precision explains.
    """
    dtype = factors[0].dtype
    number = 1.0 + (2.0**-10 if compute == "tf32" else float(np.finfo(dtype).eps))
    for factor in factors:
        factor.fill(0)
        _diagonal(factor)[...] = number
    products = multiply()
    length = min(size for stack in [*factors, products] for size in stack.shape[-2:])
    expected = products.dtype.type(number**2).item()
    diagonal = _diagonal(products)[..., :length]
    squares = diagonal.copy().ravel()
    squares = squares.get() if hasattr(squares, "get") else squares
    diagonal[...] = 0
    wrong, beside = squares != expected, _any(products)
    if not (wrong.any() or beside):
        return
    square = squares[int(wrong.argmax())].item()
    result = f"in a known product of {dtype} the device computed {number} squared as {square}"
    if beside or not abs(square - expected) < _GROSS:
        raise DeviceFailed(
            f"{result}, with {'nonzero numbers' if beside else '0'} off the diagonal, instead of "
            f"{expected} with 0 off the diagonal; suspect the device and try another",
            suspect=True,
        )
    cure = "" if compute not in ("float32", "complex64") else ", or ask for precision: tf32"
    raise IntegrityError(
        f"{result}, not {expected}: lower precision than {compute}. Look for what changes the "
        f"arithmetic of cuBLAS here (environment variables, another library){cure}"
    )


def _any(stack: Any) -> bool:
    """Whether an element of a C-contiguous stack has a bit that is not 0."""
    # `max` of integers: for `any`, and for floating-point numbers, cupy compiles for seconds.
    flat = stack.reshape(-1).view(f"u{min(8, stack.itemsize)}")
    return any(bool(flat[low : low + _PIECE].max()) for low in range(0, flat.size, _PIECE))


def _diagonal(stack: Any) -> Any:
    """The diagonals of the matrices, as a view because memory may be short."""
    *matrices, rows, columns = stack.shape
    step = columns + 1
    return stack.reshape(*matrices, -1)[..., : (min(rows, columns) - 1) * step + 1 : step]
