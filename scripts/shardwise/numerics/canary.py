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

from shardwise.errors import IntegrityError

_GROSS = 2.0**-6
"""An error of this size or more is not one of precision, as even bfloat16 has 8 bits: the proof of
the first batch finds it, and blames the device."""


def check(multiply: Callable[[], Any], factors: list[Any], compute: str) -> None:
    """Raise IntegrityError if products have a lower precision than ``compute``.

    This waits for the device. ``multiply`` multiplies the current contents of the factors and
    returns the products ``(n, m, p)``. The factors are C-contiguous stacks, or one matrix for all;
    they are overwritten.
    """
    dtype = factors[0].dtype
    number = 1.0 + (2.0**-10 if compute == "tf32" else float(np.finfo(dtype).eps))
    for factor in factors:
        factor.fill(0)
        _diagonal(factor)[...] = number
    products = multiply()
    length = min(size for stack in [*factors, products] for size in stack.shape[-2:])
    expected = products.dtype.type(number**2).item()
    squares = _diagonal(products)[..., :length].copy().ravel()
    squares = squares.get() if hasattr(squares, "get") else squares
    wrong = (squares != expected) & (abs(squares - expected) < _GROSS)
    if not wrong.any():
        return
    square = squares[int(wrong.argmax())].item()
    cure = "" if compute not in ("float32", "complex64") else ", or ask for precision: tf32"
    raise IntegrityError(
        f"in a known product of {dtype} the device computed {number} squared as {square}, not "
        f"{expected}: lower precision than {compute}. Look for what changes the arithmetic of "
        f"cuBLAS here (environment variables, another library){cure}"
    )


def _diagonal(stack: Any) -> Any:
    """The diagonals of the matrices, as a view because memory may be short."""
    *matrices, rows, columns = stack.shape
    step = columns + 1
    return stack.reshape(*matrices, -1)[..., : (min(rows, columns) - 1) * step + 1 : step]
