"""Arrays of any shapes on their way to a rank or a file: what they are, and room for them."""

import json
import math
from collections.abc import Iterable

import numpy as np

from shardwise.errors import IntegrityError


def described(arrays: Iterable[np.ndarray]) -> str:
    """Dtypes and shapes of arrays of numbers, as a text without a line break."""
    return json.dumps([[array.dtype.str, list(array.shape)] for array in arrays])


def room(text: str, nbytes: int | None = None) -> list[np.ndarray]:
    """New arrays, of what a text describes.

    Parameters
    ----------
    nbytes
        What they must come to; looked at before any memory is taken.

    Raises
    ------
    IntegrityError
        Where the text describes no arrays, or others than of so many bytes.
    """
    try:
        shapes = [(np.dtype(str(descr)), tuple(shape)) for descr, shape in json.loads(text)]
        # Among the other kinds are objects, and texts of no length that NumPy would lengthen.
        if any(dtype.kind not in "biufc" for dtype, _ in shapes):
            raise ValueError("no numbers")
        if any(type(n) is not int or n < 0 for _, shape in shapes for n in shape):
            raise ValueError("no shape")
        total = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes)
        if nbytes is not None and total != nbytes:
            raise ValueError(f"{total} bytes are described, and {nbytes} are there")
        return [np.empty(shape, dtype) for dtype, shape in shapes]
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise IntegrityError(f"a description of arrays is damaged ({error})") from error
