"""Freivalds' check on the host, with NumPy."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from shardwise.numerics.tolerances import _TINY, CheckSpec

_BLOCK = 2**15
"""Elements that NumPy widens at once: they stay in a core's cache."""


Steps = list[tuple[Any, bool]]
"""The factors that vectors are multiplied with, and whether transposed."""


def _groups(steps: Steps, count: int, group: int) -> Iterator[tuple[int, Steps]]:
    """The steps of so many matrices at a time; one that serves all is in each."""
    for low in range(0, count, group):
        yield low, [(s if len(s) == 1 else s[low : low + group], turned) for s, turned in steps]


def _forms(xp: Any, left: Any, actual: Any, expected: Any, size: Any) -> Any:
    """The forms, from C r, A (B r) and their moduli, each ``(n, rows, .)``."""
    pair = [(x[..., -1] * left).sum(axis=-1)[:, np.newaxis] for x in (actual, expected)]
    if size is not None:
        moduli = size.reshape(len(actual), -1)
        pair = [x.view("float64") for x in pair] + [moduli @ xp.abs(left)[:, np.newaxis]]
    return xp.concatenate(pair, axis=1)


class _Host:
    """Floating point on NumPy, a cache-sized block at a time."""

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        signs = spec.signs()
        self._wide = np.dtype("complex128" if "complex" in spec.dtype else "float64")
        self._parts = self._wide.itemsize // 8
        self._signs = signs.astype(self._wide)[np.newaxis]
        self._ones, self._left = np.full((1, len(signs), 1), spec.scale), spec.left_weights()
        self._relative, self._absolute = spec.scaled_bound
        self._close = spec.close
        # What an element of the moduli counts for at least, see `tolerance`.
        self._least = _TINY * self._parts if spec.dtype == self._wide else 0.0
        self._floor = spec.floor

    def check(self, steps: Steps, product: Any) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            expected, size = self._product(steps)
            actual = self._times(product, False, self._signs, None)[0]
            bound = self._relative * size + self._absolute
            # Within an infinite bound nothing is proven.
            gap = self._moduli(actual - expected)
            rows: np.ndarray = np.where(np.isfinite(bound), gap / bound, np.nan).max(axis=2)
            ratio: np.ndarray = rows.max(axis=1)
            if self._close:
                i, row = np.unravel_index(np.argmax(rows), rows.shape)  # NaN is the largest
                ratio[i] = np.maximum(ratio[i], self._closer_look(steps, product, int(i), int(row)))
            return ratio, _forms(np, self._left, actual, expected, size)

    def _closer_look(self, steps: Steps, product: Any, i: int, row: int) -> float:
        """How far the elements of one row of product i are off, in units of their tolerance."""
        (first, turned), (second, across) = steps
        a = (second[i, :, row] if across else second[i, row]).astype(self._wide).reshape(1, -1, 1)
        size = np.maximum(np.abs(a.view("float64")), self._floor).sum(axis=2, keepdims=True)
        b = first if len(first) == 1 else first[i : i + 1]
        expected, size = self._times(b, not turned, a, size)
        gap = self._moduli(product[i, row].astype(self._wide) - expected[0, :, 0])
        relative, absolute = cast(tuple[float, float], self._close)
        return float((gap / (relative * size[0, :, 0] + absolute)).max())

    def _moduli(self, numbers: np.ndarray) -> np.ndarray:
        parts = np.abs(numbers.view("float64")).reshape(*numbers.shape, self._parts)
        total: np.ndarray = parts.sum(axis=-1)
        return total

    def _product(self, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
        """The vectors after all steps, and the moduli."""
        v, size = self._signs, self._ones
        for stack, transposed in steps:
            v, size = self._times(stack, transposed, v, size)
        return v, size

    def _times(
        self, stack: Any, transposed: bool, v: np.ndarray, size: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Products of a stack with vectors, and of its moduli with ``size`` unless that is None."""
        n, rows, cols = stack.shape
        shape = (n, cols if transposed else rows)
        product, moduli = np.zeros((*shape, v.shape[2]), self._wide), np.zeros((*shape, 1))
        if size is not None:  # once for the real and once for the imaginary parts
            size = np.repeat(size, 1 if transposed else self._parts, axis=1)
        for part, band in _blocks(n, rows, cols):
            block = stack[part, band].astype(self._wide, copy=False)
            which = part if len(v) > 1 else slice(None)
            if transposed:
                product[part] += block.transpose(0, 2, 1) @ v[which, band]
            else:
                product[part, band] = block @ v[which]
            if size is None:
                continue
            absolute = np.abs(block.view("float64"))
            if self._floor:
                np.maximum(absolute, self._floor, out=absolute)
            if transposed:
                both = absolute.transpose(0, 2, 1) @ size[which, band]
                moduli[part] += both.reshape(len(both), cols, -1).sum(axis=2, keepdims=True)
            else:
                moduli[part, band] = absolute @ size[which]
        return product, moduli + (rows if transposed else cols) * self._least

    def largest(self, stack: Any) -> np.ndarray:
        n, rows, cols = stack.shape
        largest = np.zeros(n)
        for part, band in _blocks(n, rows, cols):
            block = np.abs(stack[part, band].astype(self._wide, copy=False).view("float64"))
            np.maximum(largest[part], block.max(axis=(1, 2)), out=largest[part])
        return largest


def _blocks(n: int, rows: int, cols: int) -> Iterator[tuple[slice, slice]]:
    """Cut a stack into blocks of about ``_BLOCK`` elements: matrices, and rows of each."""
    matrices, band = max(1, _BLOCK // (rows * cols)), max(1, min(rows, _BLOCK // cols))
    for first in range(0, n, matrices):
        for low in range(0, rows, band):
            yield slice(first, first + matrices), slice(low, low + band)
