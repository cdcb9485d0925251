"""What the page needs to know of ``sum.npy``: read once, in slabs of rows, never all at a time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise.errors import InputError
from shardwise.files.npy import read_header

MOST_CELLS = 256
"""Rows, and columns, of the picture at most."""

MOST_BYTES = 4 * 1024**3
"""So much of the file is read at most; of a larger one, rows at equal distances."""

_SLAB_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Matrix:
    """A matrix as a picture and in a few numbers, of the rows that were read: each ``step``-th.

    Attributes
    ----------
    cells
        Means over blocks of elements, float64 ``(rows, columns)``, of moduli where the elements are
        complex; NaN where a block holds an element that is not finite.
    norms
        The Euclidean norm of each row; NaN or Inf where a row holds such.
    low, high, mean
        Of the finite elements: the least and the greatest, or modulus, and the mean, which is
        complex of a complex matrix. None where none is finite.
    norm
        Frobenius norm.
    nonfinite
        How many elements are NaN or infinite.
    """

    shape: tuple[int, int]
    dtype: str
    cells: np.ndarray
    norms: np.ndarray
    low: float | None
    high: float | None
    mean: complex | float | None
    norm: float
    nonfinite: int
    step: int

    @property
    def complex(self) -> bool:
        """Whether moduli are shown."""
        return self.dtype.startswith("complex")

    @property
    def blocks(self) -> tuple[float, float]:
        """Rows and columns of a block, on average."""
        return self.shape[0] / self.cells.shape[0], self.shape[1] / self.cells.shape[1]


def read(path: Path) -> Matrix:
    """Read a matrix of float64, complex128 or int64 in slabs.

    Raises
    ------
    InputError
        Where it is missing, damaged, or no matrix in the order of rows.
    """
    header = read_header(path)
    if len(header.shape) != 2 or 0 in header.shape or header.fortran:
        raise InputError(f"{path} is no matrix in C order, but of shape {header.shape}")
    rows, columns = header.shape
    row_bytes = columns * header.dtype.itemsize
    step = max(1, -(-rows * row_bytes // MOST_BYTES))
    at_once = max(1, _SLAB_BYTES // row_bytes) if step == 1 else 1
    work = _Pass(header.shape, step)
    try:
        with open(path, "rb") as file, np.errstate(all="ignore"):
            for first in range(0, rows, at_once * step):
                file.seek(header.offset + first * row_bytes)
                wanted = min(at_once, rows - first)
                slab = np.fromfile(file, header.dtype, wanted * columns)
                if len(slab) != wanted * columns:
                    raise InputError(f"{path}: was cut short while it was read")
                work.add(slab.reshape(wanted, columns), first)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return work.result(header.native.name)


class _Pass:
    """One pass over the rows: sums over blocks, norms, extremes."""

    def __init__(self, shape: tuple[int, int], step: int) -> None:
        rows, columns = shape
        high, wide = min(rows, MOST_CELLS), min(columns, MOST_CELLS)
        self._shape, self._step = shape, step
        self._edges = np.arange(wide) * columns // wide
        self._sums, self._counts = np.zeros((high, wide)), np.zeros(high)
        self._norms: list[np.ndarray] = []
        self._low, self._high = np.inf, -np.inf
        self._total: complex = 0.0
        self._elements = self._nonfinite = 0

    def add(self, slab: np.ndarray, first: int) -> None:
        """Add consecutive rows."""
        height, width = self._sums.shape[0], np.diff([*self._edges, slab.shape[1]])
        values = np.abs(slab) if slab.dtype.kind == "c" else slab.astype(np.float64)
        means = np.add.reduceat(values, self._edges, axis=1) / width
        # Row r lies in the cell that ends the first after it: the inverse of i * rows // height.
        cells = ((first + np.arange(len(slab)) + 1) * height - 1) // self._shape[0]
        np.add.at(self._sums, cells, means)
        np.add.at(self._counts, cells, 1)
        largest = np.abs(values).max(axis=1, keepdims=True)
        scale = np.where((largest > 0) & np.isfinite(largest), largest, 1)
        self._norms.append(np.sqrt(((values / scale) ** 2).sum(axis=1)) * scale[:, 0])
        finite = np.isfinite(values)
        kept = values if (whole := bool(finite.all())) else values[finite]
        self._nonfinite += values.size - kept.size
        if kept.size:
            self._low = min(self._low, float(kept.min()))
            self._high = max(self._high, float(kept.max()))
            self._total += complex((slab if whole else slab[finite]).sum(dtype=np.complex128))
            self._elements += kept.size

    def result(self, dtype: str) -> Matrix:
        """What all of it comes to."""
        read = self._counts > 0
        cells = self._sums[read] / self._counts[read, None]
        cells[~np.isfinite(cells)] = np.nan
        norms = np.concatenate(self._norms)
        finite = norms[np.isfinite(norms)]
        scale = float(finite.max(initial=0.0)) or 1.0
        mean = self._total / self._elements if self._elements else None
        if mean is not None and not dtype.startswith("complex"):
            mean = mean.real
        return Matrix(
            self._shape, dtype, cells, norms,
            self._low if self._elements else None, self._high if self._elements else None, mean,
            float(np.sqrt(((finite / scale) ** 2).sum()) * scale), self._nonfinite, self._step,
        )  # fmt: skip
