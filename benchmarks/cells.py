"""Random factors of many kinds for `proof.py` and `kernels.py`, and products by our own kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOATS = ("float16", "float32", "tf32x3", "tf32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64")
SCALES = {"float16": 3}  # largest power of ten that scales A or B; 30 for other types
SPREADS = {"float16": 2, "float64": 100, "complex128": 100}  # decades within one factor; else 12
KINDS: dict[str, Callable[..., Any]] = {
    "normal": lambda xp, normal, uniform, spread: normal,
    "positive": lambda xp, normal, uniform, spread: uniform,
    "constant": lambda xp, normal, uniform, spread: 0 * uniform + uniform[:, :1, :1] + 1,
    "powers of two": lambda xp, normal, uniform, spread: xp.copysign(
        xp.exp2(xp.rint((uniform - 0.5) * spread * np.log2(10))), normal
    ),
    "rows": lambda xp, normal, uniform, spread: normal * 10 ** ((uniform[..., :1] - 0.5) * spread),
    "sparse": lambda xp, normal, uniform, spread: xp.where(uniform < 0.05, normal, 0.0),
    "subnormal": lambda xp, normal, uniform, spread: normal,
}
"""Each is made of normal numbers and of uniform ones from 0 to 1. In products of constant matrices
all rounding errors have the same sign."""

INTEGER_KINDS = ("normal", "constant", "sparse")
UNSCALED = ("powers of two", "rows", "subnormal")
SIZES = {
    "d ≤ 128": [*((d, d, d) for d in (2, 3, 4, 7, 8, 16, 17, 32, 33, 64, 100, 128)),
                (5, 128, 3), (128, 2, 128), (3, 100, 64), (1, 90, 1)],
    "d ≤ 1024": [*((d, d, d) for d in (256, 500, 1024)), (256, 1000, 40), (7, 1024, 300)],
    "d = 4096": [(4096, 4096, 4096), (64, 4096, 4096)],
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What is multiplied: its arithmetic (a dtype, tf32x3 or tf32), shapes, and kind of numbers."""

    arithmetic: str
    product: str
    left: tuple[int, int]
    right: tuple[int, int] | None = None
    kind: str = "normal"
    scales: tuple[float, float] = (0.0, 0.0)  # powers of ten by which A and B are multiplied

    @property
    def dtype(self) -> str:
        """Element type of the factors."""
        return "float32" if self.arithmetic.startswith("tf32") else self.arithmetic

    @property
    def compute(self) -> str:
        """The arithmetic of an inner product; if it is tf32, NumPy computes more precisely."""
        return self.arithmetic if "tf32" in self.arithmetic else self.problem(1).compute_dtype

    def problem(self, matrices: int) -> Any:
        """The engine's problem of this many such matrices."""
        from shardwise.plan.problem import Problem

        return Problem(matrices, self.left, self.product, self.dtype, self.right)


def draw(arithmetic: str, size: str, number: int) -> Cell:
    """A cell of a class of sizes: the kinds of numbers in turn, all else at random."""
    random = np.random.default_rng(number)
    kinds = INTEGER_KINDS if arithmetic in INTEGERS else tuple(KINDS)
    kind = kinds[number % len(kinds)]
    m, k, p = SIZES[size][random.integers(len(SIZES[size]))]
    shapes = {"A @ B": (m, k), "A.T @ A": (k, p), "A @ A.T": (m, k), "A @ A": (m, k)}
    # A subnormal A times itself is 0, so it takes `A @ B` only.
    which = random.integers(1 if kind == "subnormal" else 3 + (m == k == p))
    product = list(shapes)[which]
    digits = SCALES.get(arithmetic, 30)
    most = 0 if arithmetic in INTEGERS or kind in UNSCALED else digits
    scale = most * random.integers(-1, 2) / 2
    both = (scale * 2, -scale * 2) if product == "A @ B" and random.integers(2) else (scale, scale)
    return Cell(
        arithmetic, product, shapes[product], (k, p) if product == "A @ B" else None, kind, both
    )


def square(arithmetic: str, dim: int, product: str = "A @ A") -> Cell:
    """Normal numbers of order 1, each matrix with itself."""
    return Cell(arithmetic, product, (dim, dim))


def kernel(xp: Any, cell: Cell, count: int) -> tuple[Any, int]:
    """The engine's kernel, and how many matrices it multiplies at once."""
    from shardwise.numerics import gemm

    problem = cell.problem(count)
    precision = cell.arithmetic if cell.arithmetic.startswith("tf32") else "ieee"
    return gemm.kernel(xp, problem, precision), 1 if xp is np else problem.call_matrices


def products(xp: Any, cell: Cell, left: Any, right: Any = None) -> Any:
    """Products by the engine's kernel, on stacks padded to whole calls of it."""
    run, call = kernel(xp, cell, count := len(left))
    more = ((0, -count % call), (0, 0), (0, 0))
    problem = cell.problem(count)
    out = xp.zeros((count + more[0][1], *problem.product_shape), problem.product_dtype)
    factors = (None if stack is None else xp.pad(stack, more) for stack in (left, right))
    with np.errstate(all="ignore"):
        run.multiply(*factors, out, count)
    return out[:count]


def checker(xp: Any, cell: Cell, seed: int, group: int) -> Any:
    """The engine's check: in each ``group`` of products one row gets a closer look."""
    from shardwise.numerics import freivalds

    return freivalds.checker(xp, cell.problem(1), cell.compute, seed, group)


def factors(xp: Any, cell: Cell, count: int, seed: int) -> tuple[Any, Any]:
    """Random stacks A and B as they are stored; B is None if the product needs only A."""
    left = _factor(xp, cell, (count, *cell.left), seed, 0)
    return left, cell.right and _factor(xp, cell, (count, *cell.right), seed, 1)


def _factor(xp: Any, cell: Cell, shape: tuple[int, ...], seed: int, side: int) -> Any:
    """One factor ``(count, rows, columns)`` in the element type of the cell."""
    random = xp.random.default_rng(2 * seed + side)

    def draw() -> Any:
        drawn = random.standard_normal(shape), random.random(shape)
        return KINDS[cell.kind](xp, *drawn, SPREADS.get(cell.dtype, 12))

    numbers = draw() + 1j * draw() if "complex" in cell.dtype else draw()
    if cell.arithmetic in INTEGERS:  # as large as possible while products fit int64
        inner = cell.problem(1).factor_shapes[0][1]
        top = min(int(np.iinfo(cell.dtype).max), int(np.sqrt((2**62) // inner)))
        return xp.rint(xp.clip(numbers, -1, 1) * top).astype(cell.dtype)
    if cell.kind == "subnormal" and side == 0:
        numbers = numbers * float(np.finfo(cell.dtype).tiny) / 4
    with np.errstate(all="ignore"):
        return (numbers * 10.0 ** cell.scales[side]).astype(cell.dtype)
