"""Freivalds' check whether ``C = A @ B``, in O(d²) work instead of O(d³).

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. ``C r`` is
compared with ``A (B r)`` for a few vectors. Rounding is relative to ``|A| (|B| 1)``, which the same
pass computes. Sums are taken in float64. In half and single precision the row of each group with
the largest ratio is computed again, element by element; see docs/internals/proofs.md.
"""

from typing import Any

import numpy as np

from shardwise.numerics import tree
from shardwise.numerics.end_to_end import weights
from shardwise.numerics.tolerances import CLOSER_LOOK, VECTORS, product_tolerance, vectors
from shardwise.plan.problem import Problem

Step = tuple[Any, bool, bool]
"""A stack to multiply vectors by, and whether it is transposed (``turned``) or conjugated."""


def checker(xp: Any, problem: Problem, compute: str, seed: int, group: int) -> "Checker":
    """The check of products that were accumulated in ``compute``: a dtype, ``tf32`` or ``tf32x3``.

    A call with more than ``group`` matrices checks them group by group.
    """
    kind = _Whole if "int" in problem.dtype else _Host if xp is np else _Device
    return kind(xp, problem, compute, seed, group)


class Checker:
    """Checks stacks of products of one kind, with the same vectors and scratch memory every time.

    On cupy it launches on the current stream and waits for nothing; one stream at a time may use
    it. ``bound`` is `tolerances.product_tolerance`, ``forms`` are those of the last check, for
    `end_to_end.add_up`: a column for each product.
    """

    bound = (0.0, 0.0)
    forms: Any = None
    _close: Any = None  # the tolerance of an element of a row that is computed again

    def __init__(self, xp: Any, problem: Problem, compute: str, seed: int, group: int) -> None:
        (_, k), (m, p), dtype = problem.factor_shapes[0], problem.product_shape, problem.dtype
        self._xp, self._problem, self._group = xp, problem, group
        self._whole, self._parts = "int" in dtype, 2 if "complex" in dtype else 1
        to = xp.asarray if self._whole else np.asarray
        self._vectors = to(vectors(seed, p, self._whole))
        self._weights = to(weights("l", m, self._whole))
        if not self._whole:
            self.bound = product_tolerance(k, p, dtype, compute)
        if dtype in CLOSER_LOOK:
            self._close = product_tolerance(k, 1, dtype, compute)

    def check(self, left: Any, right: Any, product: Any) -> Any:
        """How far each product is from that of its factors, in units of the tolerance: ``(n,)``.

        A and the products are C-contiguous stacks ``(n, rows, columns)`` as they are stored; B is
        another, one matrix ``(k, p)`` for all, or None. The ratio is at most 1 for an honest
        product, and above 1 or NaN for one that is found wrong. In floating point it is finite only
        if A, B and the product all are.
        """
        one = right is not None and right.ndim == 2
        stacks = {"A": left, "B": right[np.newaxis] if one else right}
        # The right factor meets the vectors first.
        steps = [
            (stacks[name], turned, conj) for name, turned, conj in self._problem.operands[::-1]
        ]
        n = len(product)
        ratio = self._xp.zeros(n)
        rows, dtype = (2, "int64") if self._whole else (2 * self._parts + 1, "float64")
        self.forms = self._xp.empty((rows, n), dtype)
        for low in range(0, n, self._group):
            of = slice(low, low + self._group)
            part = [(s if len(s) == 1 else s[of], turned, conj) for s, turned, conj in steps]
            self._check(part, product[of], ratio[of], self.forms[:, of])
        return ratio

    def _check(self, steps: list[Step], product: Any, ratio: Any, forms: Any) -> None:
        """Write the ratios and the forms of some products."""
        raise NotImplementedError


class _Whole(Checker):
    """Integers: exact modulo 2⁶⁴, without any tolerance."""

    def _check(self, steps: list[Step], product: Any, ratio: Any, forms: Any) -> None:
        expected, actual = self._vectors, product @ self._vectors
        for stack, turned, _ in steps:
            inner = expected
            expected = (stack.transpose(0, 2, 1) if turned else stack) @ expected
        if self._problem.covariance:
            below = inner.sum(axis=1, keepdims=True)
            expected = self._xp.concatenate([expected, below], axis=1)
        ratio[(actual != expected).any(axis=(1, 2))] = np.inf
        for row, vector in zip(forms, (actual, expected), strict=True):
            row[:] = (vector[..., -1] * self._weights).sum(axis=-1)


class _Host(Checker):
    """Floating point on NumPy; vectors are rows of ``(n, vectors, length)``."""

    def __init__(self, xp: Any, problem: Problem, compute: str, seed: int, group: int) -> None:
        super().__init__(xp, problem, compute, seed, group)
        self._wide = np.dtype("complex128" if self._parts == 2 else "float64")
        self._signs = self._vectors.T.astype(self._wide, "C")[np.newaxis]
        self._ones = np.ones((1, self._signs.shape[2]))

    def _check(self, steps: list[Step], product: Any, ratio: Any, forms: Any) -> None:
        with np.errstate(all="ignore"):
            expected, size = self._signs, self._ones
            for step in steps:
                inner, expected, size = (expected, size), *self._times(step, expected, size)
            if self._problem.covariance:
                expected, size = (
                    np.concatenate([of, ones_times.sum(axis=-1, keepdims=True)], axis=-1)
                    for of, ones_times in zip((expected, size), inner, strict=True)
                )
            actual, _ = self._times((product, False, False), self._signs, self._ones)
            relative, absolute = self.bound
            bound = relative * size + absolute
            bound[~np.isfinite(bound)] = np.nan  # an infinite bound would prove nothing
            rows = _moduli(actual - expected).max(axis=1) / bound
            ratio[:] = rows.max(axis=1)
            if self._close:
                i, row = np.unravel_index(np.argmax(rows), rows.shape)  # NaN is the largest
                ratio[i] = np.maximum(ratio[i], self._closer_look(steps, product, int(i), int(row)))
            pair = [
                (x[:, -1] * self._weights).sum(axis=1, keepdims=True) for x in (actual, expected)
            ]
            forms[:-1] = np.concatenate([x.view("float64") for x in pair], axis=1).T
            forms[-1] = (size * np.abs(self._weights)).sum(axis=1)

    def _closer_look(self, steps: list[Step], product: Any, i: int, row: int) -> float:
        """How far the elements of one row of product i are off, in units of their tolerance."""
        (first, turned, conjugated), (second, across, conjugate) = steps
        if self._problem.covariance and row == product.shape[1] - 1:
            a = np.ones(second.shape[1], self._wide)
        else:
            a = (second[i, :, row] if across else second[i, row]).astype(self._wide)
        a = a.conj() if conjugate else a
        own = first if len(first) == 1 else first[i : i + 1], not turned, conjugated
        expected, size = self._times(own, np.tile(a, (1, 4, 1)), _moduli(a)[np.newaxis])
        gap = _moduli(product[i, row].astype(self._wide) - expected[0, 0])
        relative, absolute = self._close
        return float((gap / (relative * size[0] + absolute)).max())

    def _times(self, step: Step, v: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Products of a stack with vectors, and of its moduli with ``size``."""
        stack, turned, conjugated = step
        if conjugated:  # conjugates vectors and products instead: the matrices are larger
            product, moduli = self._times((stack, turned, False), v.conj(), size)
            return product.conj(), moduli
        if self._parts == 1:
            return _times(stack, turned, v, size)
        # A complex row is read as twice as many real numbers: re, im, re, im, …
        reals, half = stack.view(stack.real.dtype), v.shape[1]
        if turned:
            parts = np.concatenate([v.real, v.imag], axis=1)
            product, moduli = _times(reals, True, parts, size)
            product, moduli = product.view(self._wide), moduli.reshape(*moduli.shape[:1], -1, 2)
            moduli = moduli.sum(axis=-1)
        else:
            parts = np.concatenate([v.conj(), 1j * v.conj()], axis=1).view("float64")
            product, moduli = _times(reals, False, parts, np.repeat(size, 2, axis=1))
        return product[:, :half] + 1j * product[:, half:], moduli


def _times(
    stack: np.ndarray, turned: bool, vectors: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same as `loops.times`, whose compiled loops are faster for large stacks only."""
    if stack.nbytes >= tree.COMPILED_BYTES:
        from shardwise.numerics import loops  # only here: loading numba takes most of a second

        return loops.times(stack, turned, vectors, size)
    wide = stack.astype("float64") if turned else stack.astype("float64").swapaxes(1, 2)
    return vectors @ wide, (size[:, np.newaxis] @ np.abs(wide))[:, 0]


def _moduli(numbers: np.ndarray) -> Any:
    """``|re| + |im|``."""
    moduli = np.abs(numbers.real)
    return moduli + np.abs(numbers.imag) if numbers.dtype.kind == "c" else moduli


class _Device(Checker):
    """Floating point on a GPU, by the kernels of freivalds.cu. No call waits for the device."""

    _BLOCK = 256  # threads, as in freivalds.cu

    def __init__(self, xp: Any, problem: Problem, compute: str, seed: int, group: int) -> None:
        super().__init__(xp, problem, compute, seed, group)
        kernels = tree.compiled(xp, "freivalds.cu", f"-D{problem.dtype.upper()}")
        names = "rows_times", "columns_times", "take_row", "compare", "compare_row"
        self._kernels = {name: kernels.get_function(name) for name in names}
        # Not cuBLAS, which may be at work for another stream (cuda.py).
        numbers, add = ("float64 x, float64 y", "float64 z"), ("x * y", "a + b", "z = a", "0")
        self._dot = xp.ReductionKernel(*numbers, *add, "dot")
        # How many threads run at once, given the registers that these kernels use.
        attributes = xp.cuda.Device().attributes
        self._threads = attributes["MultiProcessorCount"] * 2 * self._BLOCK
        planes, (m, p) = VECTORS * self._parts + 1, problem.product_shape
        # Kernels read pairs, so lengths are rounded up to even, and the padding stays 0.
        signs = np.zeros((1, planes, p + p % 2))
        signs[0, :VECTORS, :p], signs[0, -1, :p] = self._vectors.T, 1
        self._signs = xp.asarray(signs)
        lengths = [n + n % 2 for n in (problem.factor_shapes[0][1], m)]
        self._products = [xp.zeros((group, planes, n)) for n in lengths]
        self._own = xp.zeros((group, self._parts, lengths[1]))  # C r of the last vector
        padded = np.zeros((2, lengths[1]))
        padded[:, :m] = self._weights, np.abs(self._weights)
        self._left = xp.asarray(padded)
        # For the closer look: a row of A times B; and the numbers of that matrix and row.
        self._row, self._where = xp.zeros_like(self._signs), xp.zeros(2, xp.int64)

    def _check(self, steps: list[Step], product: Any, ratio: Any, forms: Any) -> None:
        spots: Any = self._xp.zeros(len(product), "uint64") if self._close else 0
        # The planes of vectors and moduli after all steps, in scratch memory.
        v = below = self._signs
        for step, scratch in zip(steps, self._products, strict=True):
            if self._problem.covariance and v is not self._signs:
                below = v.sum(axis=2)  # now: a conjugated step conjugates v in place
            inner, v = v, scratch[: len(step[0])]
            self._times(step, inner, v)
        if self._problem.covariance:
            v[:, :, self._problem.product_shape[0] - 1] = below
        size, blocks = self._teams(product)
        self._launch(
            "compare",
            blocks,
            *(product, *product.shape, self._signs, self._signs.shape[2], v, v.shape[2]),
            *(*self.bound, np.int32(size), ratio, self._own, spots),
        )
        # From the planes of A (B r), and from the C r that `compare` left.
        n, parts, (left, moduli) = len(product), self._parts, self._left
        forms[:parts] = self._dot(self._own[:n], left, axis=2).T
        forms[parts:-1] = self._dot(v[:, VECTORS - 1 : -1 : VECTORS], left, axis=2).T
        forms[-1] = self._dot(v[:, -1], moduli, axis=1)
        if self._close:
            self._closer_look(steps, product, ratio, spots.max())

    def _closer_look(self, steps: list[Step], product: Any, ratio: Any, spot: Any) -> None:
        """Raise the ratio of the matrix with the worst row to that of the row's worst element."""
        (first, turned, conjugated), (second, across, conjugate) = steps
        _, rows, cols = product.shape
        inner = second.shape[1 if across else 2]
        a = self._products[0][:1]  # the vectors in it are no longer needed
        self._launch(
            "take_row",
            -(-inner // self._BLOCK),
            *(second, inner, np.int32(across), rows, rows - self._problem.covariance, spot),
            *(a, a.shape[2], self._where),
        )
        if conjugate:
            self._conjugate(a)
        where = self._where if len(first) > 1 else 0
        self._times((first[:1], not turned, conjugated), a, self._row, where)
        self._launch(
            "compare_row",
            -(-cols // self._BLOCK),
            *(product, rows, cols, self._row, self._row.shape[2], *self._close),
            *(self._where, ratio),
        )

    def _times(self, step: Step, v: Any, product: Any, where: Any = 0) -> None:
        """Multiply vectors; for a conjugated stack, conjugate vectors and products instead."""
        stack, turned, conjugated = step
        if conjugated:
            self._conjugate(v)
        n, rows, cols = stack.shape
        matrix_of_v = v.shape[1] * v.shape[2] if len(v) > 1 else 0
        operands = (stack, *stack.shape, v, v.shape[2], matrix_of_v, product, product.shape[2])
        if turned:
            threads = n * -(-cols * self._parts // 2)  # per chunk of rows; each takes two numbers
            chunk = max(32, -(-rows // max(1, self._threads // threads)))
            chunk += chunk % 2
            chunks = -(-rows // chunk)
            if chunks > 1:
                product.fill(0)
            blocks = -(-threads * chunks // self._BLOCK)
            self._launch("columns_times", blocks, *operands, chunk, where)
        else:
            size, blocks = self._teams(stack)
            self._launch("rows_times", blocks, *operands, np.int32(size), where)
        if conjugated:
            self._conjugate(product)

    def _conjugate(self, planes: Any) -> None:
        imaginary = planes[:, VECTORS : 2 * VECTORS]
        self._xp.negative(imaginary, out=imaginary)

    def _teams(self, stack: Any) -> tuple[int, int]:
        """Threads per team, which shares some rows of a matrix, and number of blocks of threads.

        Teams are small, to spend little on adding up, but large enough to fill the device.
        """
        n, rows, cols = stack.shape
        teams = n * -(-rows // (4 // self._parts))
        size = 4
        while size < 32 and 64 * size <= cols:
            size *= 2
        while size < self._BLOCK and 2 * size * teams <= self._threads and 16 * size <= cols:
            size *= 2
        return size, -(-teams * size // self._BLOCK)

    def _launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self._kernels[kernel]((blocks,), (self._BLOCK,), arguments)
