"""Honest random products for `proof.py`: factors of many kinds, multiplied by our own kernels."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np

FLOATS = ("float16", "float32", "tf32x3", "tf32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64")
KINDS = ("normal", "positive", "constant", "powers of two", "rows", "sparse", "subnormal")
INTEGER_KINDS = ("uniform", "constant", "sparse")
SCALES = {"float16": 3}  # decimal digits, where 30 do not fit
SPREADS = {"float16": 2, "float64": 100, "complex128": 100}  # the same within one factor; else 12
SQUARES = {
    "small": (2, 3, 4, 7, 8, 16, 17, 32, 33, 64, 100, 128),
    "middle": (256, 500, 1024),
    "large": (4096,),
}
RECTANGLES = {
    "small": ((5, 128, 3), (128, 2, 128), (3, 100, 64), (1, 90, 1)),
    "middle": ((256, 1000, 40), (7, 1024, 300)),
    "large": ((64, 4096, 4096),),
}


@dataclass(frozen=True)
class Cell:
    """What is multiplied: its arithmetic (a dtype, tf32x3 or tf32), shapes, and kind of numbers.

    Attributes
    ----------
    scales
        Powers of ten by which A and B are multiplied.
    """

    arithmetic: str
    product: str
    left: tuple[int, int]
    right: tuple[int, int] | None
    kind: str
    scales: tuple[float, float]

    @property
    def dtype(self) -> str:
        """Element type of the factors."""
        return "float32" if self.arithmetic.startswith("tf32") else self.arithmetic

    def problem(self, matrices: int) -> Any:
        """So many of them, as the engine has it."""
        from shardwise.plan.problem import Problem

        return Problem(matrices, self.left, self.product, self.dtype, self.right)


@dataclass
class Batch:
    """Products with what is needed to check them; ``left`` as stored, ``right`` or None."""

    left: Any
    right: Any
    product: Any
    checker: Any
    compute: str

    def ratio(self, product: Any = None) -> Any:
        """The residuals of the products, or of others in their place, in units of the tolerance."""
        product = self.product if product is None else product
        with np.errstate(all="ignore"):
            return self.checker.check(self.left, self.right, product)


def cells(arithmetic: str, size: str, seed: int) -> list[Cell]:
    """Cells of a class of sizes, all kinds of numbers in turn: the first ones are a fair choice."""
    shapes = [(d, d, d) for d in SQUARES[size]] + list(RECTANGLES[size])
    kinds = INTEGER_KINDS if arithmetic in INTEGERS else KINDS
    random = np.random.default_rng(seed)
    groups = [[c for s in shapes for c in _cells_of(arithmetic, kind, *s)] for kind in kinds]
    for group in groups:
        random.shuffle(group)
    longest = max(len(group) for group in groups)
    return [group[i % len(group)] for i in range(longest) for group in groups]


def _cells_of(arithmetic: str, kind: str, m: int, k: int, p: int) -> Iterator[Cell]:
    """All products of one shape and kind."""
    for scales in _scales(arithmetic, kind):
        yield Cell(arithmetic, "A @ B", (m, k), (k, p), kind, scales)
        if kind == "subnormal" or scales[0] != scales[1]:  # subnormal A times itself is 0
            continue
        yield Cell(arithmetic, "A.T @ A", (k, p), None, kind, scales)
        yield Cell(arithmetic, "A @ A.T", (m, k), None, kind, scales)
        if m == k == p:
            yield Cell(arithmetic, "A @ A", (m, k), None, kind, scales)


def _scales(arithmetic: str, kind: str) -> list[tuple[float, float]]:
    if arithmetic in INTEGERS or kind in ("powers of two", "rows", "subnormal"):
        return [(0.0, 0.0)]
    s = float(SCALES.get(arithmetic, 30))
    return [(0.0, 0.0), (s, -s), (-s, s), (s / 2, s / 2), (-s / 2, -s / 2)]


def matrices(xp: Any, cell: Cell, wanted: int) -> int:
    """How many of them are multiplied at once: no more than fit a batch of the engine."""
    from shardwise.plan import memory

    return max(1, min(wanted, memory.batch_matrices(cell.problem(1), xp is not np)))


def batch(xp: Any, cell: Cell, count: int, seed: int, group: int | None = None) -> Batch:
    """Random factors and their products, with a checker as the engine makes one.

    With a ``group`` that many are checked at once: of each group one row gets the closer look. So 1
    shows for each product what is found where all others of its batch are right.
    """
    from shardwise.numerics import freivalds
    from shardwise.numerics.tolerances import CheckSpec
    from shardwise.plan import memory

    left = _stored(xp, cell, cell.left, count, seed, 0)
    right = None if cell.right is None else _stored(xp, cell, cell.right, count, seed, 1)
    product, compute = products(xp, cell, left, right)
    group = group or memory.proof_matrices(cell.problem(count), count)
    spec = CheckSpec(cell.product, cell.left, cell.right, cell.dtype, compute, seed, group)
    return Batch(left, right, product, freivalds.Checker(xp, spec), compute)


def products(xp: Any, cell: Cell, left: Any, right: Any) -> tuple[Any, str]:
    """Products by the engine's kernel, and the name of the arithmetic."""
    from shardwise.numerics import gemm
    from shardwise.plan import memory

    problem, count = cell.problem(len(left)), len(left)
    call = 1 if xp is np else memory.call_matrices(problem)
    whole = -(-count // call) * call  # the kernel computes whole calls

    def padded(stack: Any) -> Any:
        if stack is None:
            return None
        larger = xp.zeros((whole, *stack.shape[1:]), stack.dtype)
        larger[:count] = stack
        return larger

    short = cell.arithmetic.startswith("tf32")
    kernel = gemm.kernel(xp, problem, cell.arithmetic if short else "ieee")
    out = xp.zeros((whole, *problem.product_shape), problem.product_dtype)
    with np.errstate(all="ignore"):
        kernel.multiply(padded(left), padded(right), out, count)
    # NumPy multiplies in float32 there: its products are as good as tf32's and better.
    return out[:count], cell.arithmetic if short else kernel.compute


def _stored(xp: Any, cell: Cell, shape: tuple[int, int], count: int, seed: int, side: int) -> Any:
    """One factor ``(count, rows, columns)`` in the element type of the cell."""
    random = xp.random.default_rng([seed, side] if xp is np else 2 * seed + side)
    whole = (count, *shape)
    if cell.arithmetic in INTEGERS:
        return _integers(xp, random, cell, whole)
    parts = [_numbers(xp, random, cell, whole, side) for _ in range(_parts(cell.dtype))]
    numbers = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
    with np.errstate(all="ignore"):
        return (numbers * 10.0 ** cell.scales[side]).astype(cell.dtype)


def _parts(dtype: str) -> int:
    return 2 if "complex" in dtype else 1


def _numbers(xp: Any, random: Any, cell: Cell, shape: tuple[int, ...], side: int) -> Any:
    spread = SPREADS.get(cell.dtype, 12)
    if cell.kind == "positive":
        return random.random(shape)
    if cell.kind == "constant":  # all rounding errors of a product go the same way
        return xp.broadcast_to(1 + random.random((shape[0], 1, 1)), shape)
    numbers = random.standard_normal(shape)
    if cell.kind == "powers of two":
        exponent = xp.rint((2 * random.random(shape) - 1) * spread * np.log2(10) / 2)
        return xp.where(numbers < 0, -1.0, 1.0) * xp.exp2(exponent)
    if cell.kind == "rows":
        return numbers * 10 ** ((2 * random.random((*shape[:2], 1)) - 1) * spread / 2)
    if cell.kind == "sparse":
        numbers = xp.where(random.random(shape) < 0.05, numbers, 0.0)
    elif cell.kind == "subnormal" and side == 0:
        numbers *= float(np.finfo(cell.dtype).tiny) / 4
    return numbers


def _integers(xp: Any, random: Any, cell: Cell, shape: tuple[int, ...]) -> Any:
    """As large as their products can be in int64."""
    inner = cell.problem(1).factor_shapes[0][1]
    top = min(int(np.iinfo(cell.dtype).max), int(np.sqrt((2**62) // inner)))
    if cell.kind == "constant":
        return xp.full(shape, top, cell.dtype)
    numbers = random.integers(-top, top + 1, shape)
    if cell.kind == "sparse":
        numbers = xp.where(random.random(shape) < 0.05, numbers, 0)
    return numbers.astype(cell.dtype)


def finite(xp: Any, made: Batch) -> Any:
    """Which matrices have finite factors and a finite product: all others prove nothing."""
    stacks = [x for x in (made.left, made.right, made.product) if x is not None]
    return xp.stack([xp.isfinite(stack).all(axis=(1, 2)) for stack in stacks]).all(axis=0)


def square(arithmetic: str, dim: int) -> Cell:
    """Normal numbers of order 1, each matrix times itself."""
    return Cell(arithmetic, "A @ A", (dim, dim), None, "normal", (0.0, 0.0))


def rounds(first: int, budget: harness.Budget) -> Iterator[int]:
    """Seeds while there is time, and one in any case."""
    yield first
    for seed in itertools.count(first + 1):
        if budget.left <= 0:
            return
        yield seed
