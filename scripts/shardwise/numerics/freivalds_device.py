"""Freivalds' check on a device, with kernels of our own."""

from pathlib import Path
from typing import Any

import numpy as np

from shardwise.numerics.freivalds_host import Step, Steps
from shardwise.numerics.tolerances import VECTORS, CheckSpec


class _Device:
    """Floating point on a GPU, by the kernels of ``numerics/freivalds.cu``.

    Nothing waits for the device.
    """

    _BLOCK = 256  # threads of a block, as in freivalds.cu

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp, dtype, group = xp, spec.problem.dtype, spec.group
        self._relative, self._absolute = spec.scaled_bound
        self._close, self._column_sums = spec.close, spec.problem.covariance
        left = spec.left_weights()
        kernels = _module(xp, dtype, "tf32" in spec.compute)
        names = ("rows_times", "columns_times", "largest", "take_row", "compare", "compare_row")
        self._kernels = {name: kernels.get_function(name) for name in names}
        # As many threads as run at once at the registers these kernels take.
        attributes = xp.cuda.Device().attributes
        self._threads = attributes["MultiProcessorCount"] * 2 * self._BLOCK
        self._parts = 2 if "complex" in dtype else 1
        self._planes = VECTORS * self._parts + 1
        self._signs = xp.asarray(self._as_planes(spec.signs(), spec.scale))
        # Lengths are even, and what lies past a vector stays 0: kernels read pairs.
        lengths = [n + n % 2 for n in (spec.problem.factor_shapes[0][1], len(left))]
        self._products = [xp.zeros((group, self._planes, n)) for n in lengths]
        self._own = xp.zeros((group, self._parts, lengths[1]))  # C r of the last vector
        padded = np.zeros((lengths[1], 2))
        padded[: len(left)] = np.stack([left, np.abs(left)], axis=1)
        self._left, self._rows = xp.asarray(padded), len(left)
        # Of the closer look: B times a row of A, and which matrix and row.
        self._row, self._where = xp.zeros_like(self._signs), xp.zeros(2, xp.int64)

    def _as_planes(self, columns: np.ndarray, moduli: float) -> np.ndarray:
        """Vectors as the kernels read them: real parts, imaginary parts (0), moduli."""
        length = len(columns)
        planes = np.zeros((1, self._planes, length + length % 2))
        planes[0, :VECTORS, :length] = columns.T
        planes[0, -1, :length] = moduli
        return planes

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
            self._closer_look(steps, product, ratio, spots.max(), self._close)

    def _closer_look(
        self, steps: Steps, product: Any, ratio: Any, spot: Any, close: tuple[float, float]
    ) -> None:
        """Raise the ratio of the matrix of the worst row to that of its worst element."""
        (first, turned, conjugated), (second, across, conjugate) = steps
        _, rows, cols = product.shape
        inner = second.shape[1 if across else 2]
        a = self._products[0][:1]  # of use no more
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
            *(product, rows, cols, self._row, self._row.shape[2], *close),
            *(self._where, ratio),
        )

    def _write_forms(self, v: Any, forms: Any) -> None:
        """Write the forms, of the planes of A (B r) and of what `compare` has left."""
        n, parts = forms.shape[1], self._parts
        weighed, contribution = (
            (x.reshape(-1, x.shape[2]) @ self._left).reshape(n, -1, 2).T for x in (v, self._own[:n])
        )
        forms[:parts] = contribution[0]
        forms[parts:-1] = weighed[0, VECTORS - 1 : -1 : VECTORS]
        forms[-1] = weighed[1, -1]

    def _product(self, steps: Steps) -> Any:
        """The planes of vectors and moduli after all steps, in scratch memory."""
        v = below = self._signs
        for step, scratch in zip(steps, self._products, strict=True):
            if self._column_sums and v is not self._signs:
                below = v.sum(axis=2)  # before a conjugated step turns v
            product = scratch[: len(step.stack)]
            self._times(step, v, product)
            v = product
        if self._column_sums:
            v[:, :, self._rows - 1] = below
        return v

    def _times(self, step: Step, v: Any, product: Any, where: Any = 0) -> None:
        """Multiply vectors; those of a conjugated stack are conjugated, before and after."""
        if not step.conjugated:
            self._launch_times(step, v, product, where)
            return
        self._conjugate(v)
        self._launch_times(step, v, product, where)
        self._conjugate(product)

    def _conjugate(self, planes: Any) -> None:
        imaginary = planes[:, VECTORS : 2 * VECTORS]
        self._xp.negative(imaginary, out=imaginary)

    def _launch_times(self, step: Step, v: Any, product: Any, where: Any) -> None:
        stack, turned, _ = step
        matrix_of_v = v.shape[1] * v.shape[2] if len(v) > 1 else 0
        operands = (stack, *stack.shape, v, v.shape[2], matrix_of_v, product, product.shape[2])
        if not turned:
            size, blocks = self._teams(stack)
            self._launch("rows_times", blocks, *operands, np.int32(size), where)
            return
        n, rows, cols = stack.shape
        threads = n * -(-cols * self._parts // 2)  # of a chunk of rows; each takes two numbers
        chunk = max(32, -(-rows // max(1, self._threads // threads)))
        chunk += chunk % 2
        chunks = -(-rows // chunk)
        if chunks > 1:
            product.fill(0)
        blocks = -(-threads * chunks // self._BLOCK)
        self._launch("columns_times", blocks, *operands, chunk, where)

    def largest(self, stack: Any) -> Any:
        top = self._xp.zeros(len(stack))
        size, blocks = self._teams(stack)
        self._launch("largest", blocks, stack, *stack.shape, np.int32(size), top)
        return top

    def _teams(self, stack: Any) -> tuple[int, int]:
        """Threads that share some rows of a matrix, and blocks of threads.

        Few, so that little is spent on adding up, but enough to fill the device.
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


def _module(xp: Any, dtype: str, tf32: bool) -> Any:
    """The kernels of ``numerics/freivalds.cu`` for a dtype; cupy keeps what it has compiled."""
    options = ("-std=c++17", f"-D{dtype.upper()}", *(("-DTF32",) if tf32 else ()))
    return xp.RawModule(code=Path(__file__).with_name("freivalds.cu").read_text(), options=options)
