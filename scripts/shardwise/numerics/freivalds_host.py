"""Freivalds' check on the host, with NumPy."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from shardwise.numerics import tree
from shardwise.numerics.tolerances import _TINY, CheckSpec


class Step(NamedTuple):
    """Matrices that vectors are multiplied with, and whether their transposes, or conjugates."""

    stack: Any
    turned: bool
    conjugated: bool


Steps = list[Step]

_CACHED = 2**15
"""Numbers that stay in a core's cache."""


def _groups(steps: Steps, count: int, group: int) -> Iterator[tuple[int, Steps]]:
    """The steps of so many matrices at a time; one that serves all is in each."""
    for low in range(0, count, group):
        yield low, [Step(s if len(s) == 1 else s[low : low + group], *how) for s, *how in steps]


class _Host:
    """Floating point on NumPy; vectors are rows of ``(n, vectors, length)``."""

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        dtype = np.dtype(spec.problem.dtype)
        if spec.group * spec.problem.matrix_bytes >= tree.COMPILED_BYTES:
            from shardwise.numerics import freivalds_cpu  # what it takes in passing, before buffers

            freivalds_cpu.prepare(dtype.type(0).real.dtype)
        self._complex = dtype.kind == "c"
        self._wide = np.dtype("complex128" if self._complex else "float64")
        signs = np.ascontiguousarray(spec.signs().T)
        self._signs = signs.astype(self._wide)[np.newaxis]
        self._ones, self._left = np.full((1, signs.shape[1]), spec.scale), spec.left_weights()
        self._relative, self._absolute = spec.scaled_bound
        self._close, self._column_sums = spec.close, spec.problem.covariance
        # What an element of the moduli counts for at least, see `tolerance`.
        self._least = _TINY * self._wide.itemsize / 8 if dtype == self._wide else 0.0

    def check(self, steps: Steps, product: Any, ratio: np.ndarray, forms: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            expected, size = self._signs, self._ones
            for step in steps:
                inner, expected, size = (expected, size), *self._times(step, expected, size)
            if self._column_sums:
                expected, size = (
                    np.concatenate([of, ones_times.sum(axis=-1, keepdims=True)], axis=-1)
                    for of, ones_times in zip((expected, size), inner, strict=True)
                )
            actual, _ = self._times(Step(product, False, False), self._signs, self._ones)
            bound = self._relative * size + self._absolute
            bound[~np.isfinite(bound)] = np.nan  # within an infinite bound nothing is proven
            rows = self._moduli(actual - expected).max(axis=1) / bound
            ratio[:] = rows.max(axis=1)
            if self._close:
                i, row = np.unravel_index(np.argmax(rows), rows.shape)  # NaN is the largest
                ratio[i] = np.maximum(ratio[i], self._closer_look(steps, product, int(i), int(row)))
            pair = [(x[:, -1] * self._left).sum(axis=1, keepdims=True) for x in (actual, expected)]
            forms[:-1] = np.concatenate([x.view("float64") for x in pair], axis=1).T
            forms[-1] = (size * np.abs(self._left)).sum(axis=1)

    def _closer_look(self, steps: Steps, product: Any, i: int, row: int) -> float:
        """How far the elements of one row of product i are off, in units of their tolerance."""
        (first, turned, conjugated), (second, across, conjugate) = steps
        if self._column_sums and row == product.shape[1] - 1:
            a = np.ones(second.shape[1], self._wide)
        else:
            a = (second[i, :, row] if across else second[i, row]).astype(self._wide)
        a = a.conj() if conjugate else a
        size = self._moduli(a)[np.newaxis]
        b = first if len(first) == 1 else first[i : i + 1]
        step = Step(b, not turned, conjugated)
        expected, size = self._times(step, np.tile(a, (1, 4, 1)), size)
        gap = self._moduli(product[i, row].astype(self._wide) - expected[0, 0])
        relative, absolute = cast(tuple[float, float], self._close)
        return float((gap / (relative * size[0] + absolute)).max())

    def _moduli(self, numbers: np.ndarray) -> Any:
        """``|re| + |im|``."""
        if self._complex:
            return np.abs(numbers.real) + np.abs(numbers.imag)
        return np.abs(numbers)

    def _times(self, step: Step, v: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Products of a stack with vectors, and of its moduli with ``size``."""
        stack, transposed, conjugated = step
        if conjugated:  # the vectors are, before and after: the matrices are larger
            product, moduli = self._times(Step(stack, transposed, False), v.conj(), size)
            return product.conj(), moduli
        least = stack.shape[1 if transposed else 2] * self._least
        if not self._complex:
            product, moduli = _times(stack, transposed, v, size)
            return product, moduli + least
        # Real and imaginary parts of a row lie side by side, as twice as many real numbers.
        reals, half = stack.view(stack.real.dtype), v.shape[1]
        if transposed:
            parts = np.concatenate([v.real, v.imag], axis=1)
            product, moduli = _times(reals, True, parts, size)
            product, moduli = product.view(self._wide), moduli.reshape(*moduli.shape[:1], -1, 2)
            moduli = moduli.sum(axis=-1)
        else:
            parts = np.concatenate([v.conj(), 1j * v.conj()], axis=1).view("float64")
            size = np.repeat(size, 2, axis=1)
            product, moduli = _times(reals, False, parts, size)
        return product[:, :half] + 1j * product[:, half:], moduli + least

    def largest(self, stack: Any) -> np.ndarray:
        # Of moduli their bits are compared: as integers they have the same order, NaN the largest.
        real = stack.real.dtype
        words = np.ascontiguousarray(stack).view(f"i{real.itemsize}").reshape(len(stack), -1)
        n, width = words.shape
        most, found = np.iinfo(words.dtype).max, np.zeros(n, words.dtype)
        each, step = max(1, _CACHED // width), min(width, _CACHED)
        for i, low in itertools.product(range(0, n, each), range(0, width, step)):
            part = words[i : i + each, low : low + step] & most
            np.maximum(found[i : i + each], part.max(axis=1), out=found[i : i + each])
        largest: np.ndarray = found.view(real).astype("float64")
        return largest


def _times(
    stack: np.ndarray, transposed: bool, vectors: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """As `freivalds_cpu.times`, whose loops pay for larger stacks only."""
    if stack.nbytes >= tree.COMPILED_BYTES:
        from shardwise.numerics import freivalds_cpu  # here: numba takes most of a second

        return freivalds_cpu.times(stack, transposed, vectors, size)
    wide = stack.astype("float64") if transposed else stack.astype("float64").swapaxes(1, 2)
    return vectors @ wide, (size[:, np.newaxis] @ np.abs(wide))[:, 0]
