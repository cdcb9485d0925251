"""Sums in a fixed order: the same bits whoever adds."""

import numpy as np

from shardwise.errors import InputError

_LOW = np.int64(0xFFFFFFFF)


class RunningSum:
    """Adds arrays of one shape, one after the other, in float64, complex128 or checked int64.

    The order of the calls is the order of the additions, element by element, so a sum over the
    same arrays in the same order has the same bits however the calls are grouped, and whichever
    part of the elements a caller holds. Integers are exact: each is kept as two halves of 32 bits
    whose sums cannot overflow below 2³¹ arrays.

    Parameters
    ----------
    shape
        Shape of the arrays.
    dtype
        ``float64``, ``complex128`` or ``int64``.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._total = np.zeros(shape, dtype)
        self._low = np.zeros(shape, dtype) if dtype == "int64" else None

    def add(self, block: np.ndarray) -> None:
        """Add the arrays of a block ``(n, *shape)``, first to last."""
        # One by one: NumPy's own sum over an axis changes its order with the shape of the block.
        for array in block:
            if self._low is None:
                np.add(self._total, array, out=self._total)
            else:
                self._total += array >> 32
                self._low += array & _LOW

    def total(self) -> np.ndarray:
        """The sum.

        Raises
        ------
        InputError
            Where a sum of integers does not fit int64.
        """
        if self._low is None:
            return self._total
        high = self._total + (self._low >> 32)
        if high.size and (high.max() >= 2**31 or high.min() < -(2**31)):
            raise InputError(
                "the sum of the integer products does not fit int64; save the input as float64"
            )
        return (high << 32) | (self._low & _LOW)
