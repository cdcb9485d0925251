"""What the page needs to know of ``sum.npy``: read once, in slabs of rows, never all at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise.errors import InputError
from shardwise.files.npy import Header, read_header

MOST_CELLS = 256
"""Rows, and columns, of the picture at most."""

MOST_BYTES = 4 * 1024**3
"""So much of the file is read at most; of a larger one, rows at equal distances."""

_SLAB_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Matrix:
    """A matrix as a picture and in a few numbers, of the rows that were read: each ``step``-th."""

    shape: tuple[int, int]
    dtype: str
    # Means over blocks of elements, float64 ``(rows, columns)``, of moduli where the elements are
    # complex; NaN where a block holds an element that is not finite.
    cells: np.ndarray
    low: float | None  # the least of the finite elements, or moduli; None where none is finite
    high: float | None  # the greatest
    nonfinite: int  # how many elements are NaN or infinite
    step: int

    @property
    def complex(self) -> bool:
        """Whether moduli are shown."""
        return self.dtype.startswith("complex")


def read(path: Path) -> Matrix:
    """Read a matrix of float64, complex128 or int64 in slabs.

    Raises InputError where it is missing, damaged, or no matrix in the order of rows.
    """
    header = read_header(path)
    if len(header.shape) != 2 or 0 in header.shape or header.fortran:
        raise InputError(f"{path} is no matrix in C order, but of shape {header.shape}")
    rows, columns = header.shape
    step = max(1, -(-rows * columns * header.dtype.itemsize // MOST_BYTES))
    height, edges = min(rows, MOST_CELLS), np.arange(min(columns, MOST_CELLS))
    edges = edges * columns // len(edges)
    sums, counts = np.zeros((height, len(edges))), np.zeros((height, 1))
    low, high, nonfinite = np.inf, -np.inf, 0
    with np.errstate(all="ignore"):
        for first, slab in _slabs(path, header, step):
            values = np.abs(slab) if slab.dtype.kind == "c" else slab.astype(np.float64)
            means = np.add.reduceat(values, edges, axis=1) / np.diff([*edges, columns])
            # The inverse of i * rows // height: row r lies in the first cell that ends after it.
            cells = ((first + np.arange(len(slab)) + 1) * height - 1) // rows
            np.add.at(sums, cells, means)
            np.add.at(counts, cells, 1)
            finite = np.isfinite(values)
            nonfinite += finite.size - int(finite.sum())
            low = min(low, float(values.min(where=finite, initial=np.inf)))
            high = max(high, float(values.max(where=finite, initial=-np.inf)))
    picture = (sums / np.maximum(counts, 1))[counts[:, 0] > 0]
    picture[~np.isfinite(picture)] = np.nan
    ends = (low, high) if low <= high else (None, None)
    return Matrix((rows, columns), header.native.name, picture, *ends, nonfinite, step)


def _slabs(path: Path, header: Header, step: int) -> Iterator[tuple[int, np.ndarray]]:
    """Slabs of consecutive rows with the number of the first; of a large file, single rows."""
    rows, columns = header.shape
    row_bytes = columns * header.dtype.itemsize
    at_once = max(1, _SLAB_BYTES // row_bytes) if step == 1 else 1
    try:
        with open(path, "rb") as file:
            for first in range(0, rows, at_once * step):
                file.seek(header.offset + first * row_bytes)
                wanted = min(at_once, rows - first)
                slab = np.fromfile(file, header.dtype, wanted * columns)
                if len(slab) != wanted * columns:
                    raise InputError(f"{path} was cut short while it was read")
                yield first, slab.reshape(wanted, columns)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
