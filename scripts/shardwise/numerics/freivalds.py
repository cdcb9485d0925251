"""Freivalds' check whether ``C = A @ B``, in O(d²) work instead of O(d³).

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. ``C r`` is
compared with ``A (B r)`` for a few vectors. Rounding is relative to ``|A| (|B| 1)``, which the same
pass computes. Sums are taken in float64. In half and single precision the row of each group with
the largest ratio is computed again, element by element; see docs/internals/proofs.md.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.numerics import tree
from shardwise.numerics.tolerances import VECTORS, CheckSpec


class Step(NamedTuple):
    """A stack to multiply vectors by, and whether it is transposed (``turned``) or conjugated."""

    stack: Any
    turned: bool
    conjugated: bool


Steps = list[Step]


class Checker:
    """Checks stacks of products of one kind, with the same vectors and scratch memory every time.

    On cupy it launches on the current stream and waits for nothing; one stream at a time may use
    it. ``bound`` is `tolerances.product_tolerance`, ``forms`` are those of the last check, for
    `end_to_end.add_up`: a column for each product.
    """

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp = xp
        # The right factor meets the vectors first.
        self._operands = spec.problem.operands[::-1]
        self._group = spec.group
        self.bound = spec.bound
        self.forms: Any = None
        self._dtype = "int64" if spec.integer else "float64"
        self._parts = 2 if spec.integer else 5 if "complex" in spec.problem.dtype else 3
        real: Any = _Host if xp is np else _Device
        self._engine: Any = _Whole(xp, spec) if spec.integer else real(xp, spec)

    def check(self, left: Any, right: Any, product: Any) -> Any:
        """How far each product is from that of its factors, in units of the tolerance: ``(n,)``.

        A and the products are C-contiguous stacks ``(n, rows, columns)`` as they are stored; B is
        another, one matrix ``(k, p)`` for all, or None. The ratio is at most 1 for an honest
        product, and above 1 or NaN for one that is found wrong. In floating point it is finite only
        if A, B and the product all are.
        """
        one = right is not None and right.ndim == 2
        stacks = {"A": left, "B": right[np.newaxis] if one else right}
        steps = [Step(stacks[name], *how) for name, *how in self._operands]
        n = len(product)
        ratio, self.forms = self._xp.zeros(n), self._xp.empty((self._parts, n), self._dtype)
        for low in range(0, n, self._group):
            of = slice(low, low + self._group)
            part = [Step(s if len(s) == 1 else s[of], *how) for s, *how in steps]
            self._engine.check(part, product[of], ratio[of], self.forms[:, of])
        return ratio


class _Whole:
    """Integers: exact modulo 2⁶⁴, without any tolerance."""

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp = xp
        self._signs, self._left = (xp.asarray(x) for x in (spec.signs, spec.left_weights))
        self._column_sums = spec.problem.covariance

    def check(self, steps: Steps, product: Any, ratio: Any, forms: Any) -> None:
        expected, actual = self._signs, product @ self._signs
        for stack, turned, _ in steps:
            inner = expected
            expected = (stack.transpose(0, 2, 1) if turned else stack) @ expected
        if self._column_sums:
            below = inner.sum(axis=1, keepdims=True)
            expected = self._xp.concatenate([expected, below], axis=1)
        ratio[(actual != expected).any(axis=(1, 2))] = np.inf
        for row, vector in zip(forms, (actual, expected), strict=True):
            row[:] = (vector[..., -1] * self._left).sum(axis=-1)


class _Host:
    """Floating point on NumPy; vectors are rows of ``(n, vectors, length)``."""

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        dtype = np.dtype(spec.problem.dtype)
        self._complex = dtype.kind == "c"
        self._wide = np.dtype("complex128" if self._complex else "float64")
        self._signs = spec.signs.T.astype(self._wide, "C")[np.newaxis]
        self._ones, self._left = np.ones((1, len(spec.signs))), spec.left_weights
        self._relative, self._absolute = spec.bound
        self._close: Any = spec.close
        self._column_sums = spec.problem.covariance

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
            bound[~np.isfinite(bound)] = np.nan  # an infinite bound would prove nothing
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
        relative, absolute = self._close
        return float((gap / (relative * size[0] + absolute)).max())

    def _moduli(self, numbers: np.ndarray) -> Any:
        """``|re| + |im|``."""
        if self._complex:
            return np.abs(numbers.real) + np.abs(numbers.imag)
        return np.abs(numbers)

    def _times(self, step: Step, v: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Products of a stack with vectors, and of its moduli with ``size``."""
        stack, transposed, conjugated = step
        if conjugated:  # conjugates vectors and products instead: the matrices are larger
            product, moduli = self._times(Step(stack, transposed, False), v.conj(), size)
            return product.conj(), moduli
        if not self._complex:
            return _times(stack, transposed, v, size)
        # A complex row is read as twice as many real numbers: re, im, re, im, …
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
        return product[:, :half] + 1j * product[:, half:], moduli


def _times(
    stack: np.ndarray, transposed: bool, vectors: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same as `loops.times`, whose compiled loops are faster for large stacks only."""
    if stack.nbytes >= tree.COMPILED_BYTES:
        from shardwise.numerics import loops  # only here: loading numba takes most of a second

        return loops.times(stack, transposed, vectors, size)
    wide = stack.astype("float64") if transposed else stack.astype("float64").swapaxes(1, 2)
    return vectors @ wide, (size[:, np.newaxis] @ np.abs(wide))[:, 0]


class _Device:
    """Floating point on a GPU, by the kernels of ``numerics/freivalds.cu``.

    No call waits for the device.
    """

    _BLOCK = 256  # threads of a block, as in freivalds.cu

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp, dtype, group = xp, spec.problem.dtype, spec.group
        self._relative, self._absolute = spec.bound
        self._close: Any = spec.close
        self._column_sums = spec.problem.covariance
        left, signs = spec.left_weights, spec.signs
        source = Path(__file__).with_name("freivalds.cu").read_text()
        kernels = xp.RawModule(code=source, options=("-std=c++17", f"-D{dtype.upper()}"))
        names = "rows_times", "columns_times", "take_row", "compare", "compare_row"
        self._kernels = {name: kernels.get_function(name) for name in names}
        # How many threads run at once, given the registers that these kernels use.
        attributes = xp.cuda.Device().attributes
        self._threads = attributes["MultiProcessorCount"] * 2 * self._BLOCK
        self._parts = 2 if "complex" in dtype else 1
        self._planes = VECTORS * self._parts + 1
        # Kernels read pairs, so lengths are rounded up to even, and the padding stays 0.
        planes = np.zeros((1, self._planes, len(signs) + len(signs) % 2))
        planes[0, :VECTORS, : len(signs)], planes[0, -1, : len(signs)] = signs.T, 1
        self._signs = xp.asarray(planes)
        lengths = [n + n % 2 for n in (spec.problem.factor_shapes[0][1], len(left))]
        self._products = [xp.zeros((group, self._planes, n)) for n in lengths]
        self._own = xp.zeros((group, self._parts, lengths[1]))  # C r of the last vector
        padded = np.zeros((2, lengths[1]))
        padded[:, : len(left)] = left, np.abs(left)
        self._left, self._rows = xp.asarray(padded), len(left)
        # For the closer look: a row of A times B; and the numbers of that matrix and row.
        self._row, self._where = xp.zeros_like(self._signs), xp.zeros(2, xp.int64)

    def check(self, steps: Steps, product: Any, ratio: Any, forms: Any) -> None:
        spots: Any = self._xp.zeros(len(product), "uint64") if self._close else 0
        v = self._product(steps)
        size, blocks = self._teams(product)
        self._launch(
            "compare",
            blocks,
            *(product, *product.shape, self._signs, self._signs.shape[2], v, v.shape[2]),
            *(self._relative, self._absolute, np.int32(size), ratio, self._own, spots),
        )
        self._write_forms(v, forms)
        if self._close:
            self._closer_look(steps, product, ratio, spots.max())

    def _closer_look(self, steps: Steps, product: Any, ratio: Any, spot: Any) -> None:
        """Raise the ratio of the matrix with the worst row to that of the row's worst element."""
        (first, turned, conjugated), (second, across, conjugate) = steps
        _, rows, cols = product.shape
        inner = second.shape[1 if across else 2]
        a = self._products[0][:1]  # the vectors in it are no longer needed
        self._launch(
            "take_row",
            -(-inner // self._BLOCK),
            *(second, inner, np.int32(across), rows, rows - self._column_sums, spot),
            *(a, a.shape[2], self._where),
        )
        if conjugate:
            self._conjugate(a)
        where = self._where if len(first) > 1 else 0
        self._times(Step(first[:1], not turned, conjugated), a, self._row, where)
        self._launch(
            "compare_row",
            -(-cols // self._BLOCK),
            *(product, rows, cols, self._row, self._row.shape[2], *self._close),
            *(self._where, ratio),
        )

    def _write_forms(self, v: Any, forms: Any) -> None:
        """Compute the forms from the planes of A (B r), and from the C r that `compare` left."""
        n, parts, (left, moduli) = forms.shape[1], self._parts, self._left
        forms[:parts] = self._own[:n].dot(left).T
        forms[parts:-1] = v[:, VECTORS - 1 : -1 : VECTORS].dot(left).T
        forms[-1] = v[:, -1].dot(moduli)

    def _product(self, steps: Steps) -> Any:
        """The planes of vectors and moduli after all steps, in scratch memory."""
        v = below = self._signs
        for step, scratch in zip(steps, self._products, strict=True):
            if self._column_sums and v is not self._signs:
                below = v.sum(axis=2)  # now: a conjugated step conjugates v in place
            product = scratch[: len(step.stack)]
            self._times(step, v, product)
            v = product
        if self._column_sums:
            v[:, :, self._rows - 1] = below
        return v

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
