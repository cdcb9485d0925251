"""A product that is known beforehand, and shows in what precision a device multiplies.

A library may compute in fewer digits than it was asked for, as cuBLAS does by switches that turn
float32 into tf32; in large matrices that hides below the tolerance of the proof (freivalds.py). So
before its first batch a device multiplies matrices with c = 1 + ε on the diagonal and 0 elsewhere,
by the very kernel that the batches get. The product has to be c² rounded to its dtype, exactly;
where ε is lost it is 1, and where tf32x3 loses one of its three products, 1 + ε.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed, IntegrityError

_GROSS = 2.0**-6
"""From here on an error on the diagonal is none of precision: bfloat16 has 8 bits."""

_PIECE = 2**22
"""Elements looked at in one call: cupy takes 32 bytes of the device for each 2048 of them, which
for a large product at once would be more than the plan says."""


def check(multiply: Callable[[], Any], factors: list[Any], compute: str) -> None:
    """Refuse to go on where products have another precision than ``compute``; waits for them.

    ``multiply`` multiplies what is in the factors, and returns where the products ``(n, m, p)``
    are. The factors are C-contiguous stacks, or one matrix for all; they are overwritten.

    Raises
    ------
    IntegrityError
        Where the precision is lower.
    DeviceFailed
        Where the product is wrong altogether.
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
    result = f"the device says that {number} squared is {square} in a product of {dtype}"
    if beside or not abs(square - expected) < _GROSS:
        raise DeviceFailed(
            f"{result}, with {'something else' if beside else '0'} beside it, and not {expected} "
            "with 0 beside it; suspect the device and try another",
            suspect=True,
        )
    cure = "" if compute not in ("float32", "complex64") else ", or ask for precision: tf32"
    raise IntegrityError(
        f"{result}, not {expected}: lower precision than {compute}. Look for what changes the "
        f"arithmetic of cuBLAS here (variables of the environment, another library){cure}"
    )


def _any(stack: Any) -> bool:
    """Whether an element of a C-contiguous stack has a bit that is not 0."""
    # Not `any`, nor of floating-point numbers: for these cupy compiles kernels for seconds.
    flat = stack.reshape(-1).view(f"u{min(8, stack.itemsize)}")
    return any(bool(flat[low : low + _PIECE].max()) for low in range(0, flat.size, _PIECE))


def _diagonal(stack: Any) -> Any:
    """The diagonals of the matrices, as a view: memory may be short."""
    *matrices, rows, columns = stack.shape
    step = columns + 1
    return stack.reshape(*matrices, -1)[..., : (min(rows, columns) - 1) * step + 1 : step]
