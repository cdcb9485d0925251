"""What the page shows of ``sum.npy``: read once, in slabs of rows, never all at a time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise.errors import InputError
from shardwise.files.npy import read_header

MOST_CELLS = 256
"""The most rows, and columns, of the picture."""


_SLAB_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Matrix:
    """A matrix as a picture, and in a few numbers of all its elements."""

    shape: tuple[int, int]
    # Elements, float64 ``(rows, columns)``, or their moduli if they are complex.
    cells: np.ndarray
    low: float  # the least of the finite elements, or moduli; infinite if none is finite
    high: float  # the greatest
    nonfinite: int  # how many elements are NaN or infinite


def read(path: Path) -> Matrix:
    """Read a matrix; its picture has evenly spaced rows and columns, all of a small matrix.

    Raises InputError if it is missing, damaged, or no matrix in the order of rows.
    """
    header = read_header(path)
    if len(header.shape) != 2 or 0 in header.shape or header.fortran:
        raise InputError(f"{path} is not a matrix in C order, but of shape {header.shape}")
    rows, columns = header.shape
    down, across = (np.arange(min(n, MOST_CELLS)) * n // min(n, MOST_CELLS) for n in header.shape)
    cells = np.empty((len(down), len(across)))
    low, high, nonfinite = np.inf, -np.inf, 0
    at_once = max(1, _SLAB_BYTES // (columns * header.dtype.itemsize))
    try:
        with open(path, "rb") as file:
            file.seek(header.offset)
            for first in range(0, rows, at_once):
                wanted = min(at_once, rows - first)
                slab = np.fromfile(file, header.dtype, wanted * columns).reshape(wanted, columns)
                values = np.abs(slab) if slab.dtype.kind == "c" else slab.astype(np.float64)
                own = (first <= down) & (down < first + wanted)
                cells[own] = values[np.ix_(down[own] - first, across)]
                finite = np.isfinite(values)
                nonfinite += finite.size - int(finite.sum())
                low = min(low, float(values.min(where=finite, initial=np.inf)))
                high = max(high, float(values.max(where=finite, initial=-np.inf)))
    except (OSError, ValueError) as error:  # or it was cut short meanwhile
        raise InputError(f"{path} cannot be read: {error}") from error
    return Matrix((rows, columns), cells, low, high, nonfinite)
