"""Rows: some arrays of one shape where they lie, in a buffer or in a mapped file."""

from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """``n`` arrays of ``width`` elements at equal distances, without a copy.

    Attributes
    ----------
    flat
        One-dimensional and C-contiguous; it may be read-only.
    start
        Element of ``flat`` at which the first array begins.
    stride
        Elements from the beginning of one array to that of the next; at least ``width``.
    """

    flat: np.ndarray
    start: int
    stride: int
    n: int
    width: int

    @classmethod
    def of(cls, stack: np.ndarray) -> "Rows":
        """The arrays of a C-contiguous stack ``(n, …)``."""
        width = stack[0].size if len(stack) else 0
        return cls(stack.reshape(-1), 0, width, len(stack), width)

    @property
    def reals(self) -> "Rows":
        """Complex numbers as real ones, twice as many."""
        if self.flat.dtype.kind != "c":
            return self
        flat = self.flat.view(f"f{self.flat.itemsize // 2}")
        return Rows(flat, 2 * self.start, 2 * self.stride, self.n, 2 * self.width)

    @property
    def array(self) -> np.ndarray:
        """The elements as a view ``(n, width)``; its rows are contiguous, and may lie apart."""
        if self.stride == self.width:  # `as_strided` takes as long as to add a short row
            return self.flat[self.start : self.start + self.n * self.width].reshape(
                self.n, self.width
            )
        item = self.flat.itemsize
        return np.lib.stride_tricks.as_strided(
            self.flat[self.start :], (self.n, self.width), (self.stride * item, item)
        )
