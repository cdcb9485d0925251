"""What is computed, as numbers: shapes, element types, bytes of one matrix and one product."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.errors import InputError
from shardwise.files import pieces
from shardwise.files.paths import COVARIANCE, STATISTICS, SUMS
from shardwise.plan.cut import power_of_two
from shardwise.units import MIB

Shape = tuple[int, int]

CALL_BYTES, MOST_IN_CALL = 128 * MIB, 2**20  # of the matrices in a call
PROOF_BYTES = 512 * MIB  # of vectors: Python takes 0.5 ms to queue the proofs that share them
LARGE_BYTES = 32 * MIB  # from this size on a matrix fills a device, and a call multiplies only one
HUGE_BYTES = 2048 * MIB  # padded copies of larger factors or products cost too much memory
_ALIGNED_BYTES = 16  # tensor cores load rows that begin at multiples of this
_WORTH_PADDING = 64 * 1024  # from this size on a matrix of other rows is copied to longer ones
_PROOF_ITEMS = 10  # float64 numbers per row in a proof: vectors and moduli, of both factors

_FUNCTION = re.compile(r"(.+\.py):([^\W\d]\w*)")


def function_parts(product: str) -> tuple[str, str] | None:
    """File and name of a product ``file.py:function``; None for any other product."""
    match = _FUNCTION.fullmatch(product)
    return (match[1], match[2]) if match else None


PRODUCTS = (
    "A @ A", "A.T @ A", "A @ A.T", "A.H @ A", "A @ A.H", "A @ B", "A.T @ B", "A.H @ B",
)  # fmt: skip


def takes_b(product: str) -> bool:
    """Whether a product has a factor B of its own."""
    return product.endswith(" @ B")


class Operand(NamedTuple):
    """A factor of a product."""

    name: str  # A or B
    turned: bool  # whether its transpose is meant
    conjugated: bool  # never for real numbers, whose .H is .T


WITH_COVARIANCE = ("A.T @ A", "A.H @ A")
# Bytes of an element, by the name of its dtype.
ITEM_BYTES = {
    "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    **{f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)},
}  # fmt: skip
OF_SUMS = "sum", "mean"  # the statistics for which the sums of shards are enough


def product_dtype(dtype: str) -> str:
    """Element type of products: the input's own, int64 for integers."""
    return "int64" if "int" in dtype else dtype


def sum_dtype(dtype: str) -> str:
    """Element type of sums: float64, complex128 or int64."""
    if "int" in dtype:
        return "int64"
    return "complex128" if "complex" in dtype else "float64"


def statistic_dtype(statistic: str, dtype: str) -> str:
    """Element type of the file of a statistic over products of a dtype."""
    real = statistic == "std" or (statistic in ("mean", *COVARIANCE) and dtype == "int64")
    return "float64" if real else sum_dtype(dtype)


@dataclass(frozen=True)
class Problem:
    """What is computed, as numbers."""

    matrices: int
    left: Shape  # (m, k) of A
    product: str
    dtype: str
    right: Shape | None = None  # of a stored B; None where A is both factors
    shared_right: bool = False  # one B serves all matrices
    result: Shape | None = None  # (p, q) of what a user's function made of the first matrix
    result_dtype: str | None = None
    covariance: bool = False  # each product has one row more: the sums of the columns of A
    labels: int = 0  # number of distinct labels, each with its sum; 0: one sum of all products

    @property
    def item(self) -> int:
        """Bytes of an element of the input."""
        return ITEM_BYTES[self.dtype]

    @property
    def product_dtype(self) -> str:
        """Element type of products."""
        return self.result_dtype or product_dtype(self.dtype)

    @property
    def sum_dtype(self) -> str:
        """Element type of sums."""
        return sum_dtype(self.product_dtype)

    @property
    def product_shape(self) -> Shape:
        """Shape of one product; with ``covariance`` its last row is the sum of the rows of A."""
        rows, columns = self.sum_shape
        return (rows + self.covariance, columns)

    @property
    def sum_shape(self) -> Shape:
        """Shape ``(m, p)`` or ``(p, q)`` of ``sum.npy`` and other statistics over products."""
        return self.result or (self.factor_shapes[0][0], self.factor_shapes[1][1])

    def results(self, statistics: Sequence[str]) -> tuple[str, ...]:
        """The arrays of a reduce: these statistics, and those of a covariance; or `SUMS` alone."""
        return (SUMS,) if self.labels else (*statistics, *COVARIANCE * self.covariance)

    def statistic_shape(self, statistic: str) -> tuple[int, ...]:
        """Shape of the file of a statistic."""
        if statistic == SUMS:
            return (self.labels, *self.sum_shape)
        return self.sum_shape[1:] if statistic in ("row_mean", "offset") else self.sum_shape

    def statistic_pieces(self, statistic: str, item: int) -> tuple[int, int]:
        """Bytes of a row and of a piece of the checksum of a statistic's file.

        The reduce computes this file from arrays of ``item`` bytes per number, a piece at a time.
        """
        shape, planned = self.statistic_shape(statistic), self.product_shape
        own = ITEM_BYTES[statistic_dtype(statistic, self.product_dtype)]
        cut = pieces.checksum_pieces(math.prod(planned) * item, item)
        row, piece = (n // item * own for n in cut)
        if shape == planned:
            return row, piece
        whole = math.prod(shape[-2:]) * own
        return whole, min(whole, piece)

    @property
    def factor_shapes(self) -> tuple[Shape, Shape]:
        """Shapes of the two factors, as multiplied; a user's function has none."""
        stored = {"A": self.left, "B": self.right or self.left}
        first, second = (
            stored[x.name][::-1] if x.turned else stored[x.name] for x in self.operands
        )
        return first, second

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """The two factors of one of `PRODUCTS`; a user's function has none."""
        left, right = (
            Operand(name, operation != "", operation == "H" and "complex" in self.dtype)
            for name, _, operation in (part.partition(".") for part in self.product.split(" @ "))
        )
        return left, right

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one A."""
        return self.left[0] * self.left[1] * self.item

    @property
    def right_bytes(self) -> int:
        """Bytes of one B, or 0 where B is made from A."""
        return self.right[0] * self.right[1] * self.item if self.right else 0

    @property
    def product_bytes(self) -> int:
        """Bytes of one product."""
        return math.prod(self.product_shape) * ITEM_BYTES[self.product_dtype]

    @property
    def node_bytes(self) -> int:
        """Bytes of a node of the tree of a sum."""
        return ITEM_BYTES[self.sum_dtype] * math.prod(self.product_shape)

    @property
    def factor_bytes(self) -> int:
        """Bytes of one A, and of one B where each matrix has its own."""
        return self.matrix_bytes + (0 if self.shared_right else self.right_bytes)

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest of A, B and product as they are multiplied."""
        wide = self.item if "int" not in self.dtype or self.result else 8
        right = self.factor_bytes - self.matrix_bytes
        factors = max(self.matrix_bytes, right) // self.item * wide
        # Without the row of column sums: one row more could halve a batch, which is a power of two.
        return max(factors, math.prod(self.sum_shape) * ITEM_BYTES[self.product_dtype])

    @property
    def widened_bytes(self) -> int:
        """Bytes of one matrix's factors and its product, in the dtype that NumPy multiplies."""
        (m, k), (_, p) = self.factor_shapes
        return ITEM_BYTES[self.compute_dtype] * (m * k + k * p + m * p)

    @property
    def proof_bytes(self) -> int:
        """Bytes that the proof of one product needs besides the product; integers are widened."""
        (m, k), (_, p) = self.factor_shapes
        vectors = (m + k + p) * _PROOF_ITEMS * 8 * (2 if "complex" in self.dtype else 1)
        return vectors + (3 * 8 * (m * k + k * p + m * p) if "int" in self.dtype else 0)

    @property
    def proof_matrices(self) -> int:
        """The most matrices whose products are proven at once."""
        return max(1, PROOF_BYTES // self.proof_bytes)

    @property
    def call_matrices(self) -> int:
        """Matrices in a *call*: those that one routine multiplies on a GPU.

        Their number decides the bits of the products, so it follows from dtype and shapes alone.
        """
        most = min(CALL_BYTES // self.largest_bytes, MOST_IN_CALL)
        return 1 if self.largest_bytes >= LARGE_BYTES else power_of_two(most)

    @property
    def padded_shapes(self) -> dict[str, Shape]:
        """Shapes with aligned rows, to which factors are copied for a GPU; none if they stay."""
        largest = max(self.matrix_bytes, self.right_bytes, self.product_bytes)
        worth = self.largest_bytes >= _WORTH_PADDING and largest <= HUGE_BYTES
        widths = self.left[1], self.product_shape[1]
        awkward = any(width * self.item % _ALIGNED_BYTES for width in widths)
        if self.result or "int" in self.dtype or not (worth and awkward):
            return {}
        step = _ALIGNED_BYTES // self.item
        own = {"left": self.left, "out": self.product_shape, "right": self.right}
        return {k: (-(-s[0] // step) * step, -(-s[1] // step) * step) for k, s in own.items() if s}

    def split_shapes(self, precision: str) -> dict[str, tuple[int, int, int]]:
        """Shapes of the stacks, perhaps padded, that tf32x3 splits in two for one call on a GPU."""
        if precision != "tf32x3" or self.dtype not in ("float32", "complex64") or self.result:
            return {}
        call, pads = self.call_matrices, self.padded_shapes
        shapes = {"left": self.left, "right": self.right}
        counts = {"left": call, "right": 1 if self.shared_right else call}
        return {k: (counts[k], *pads.get(k, shape)) for k, shape in shapes.items() if shape}

    @property
    def compute_dtype(self) -> str:
        """Element type in which inner products are accumulated, under IEEE arithmetic.

        For narrow integers float64 is exact up to 2⁵³, and many times as fast as int64.
        """
        if self.dtype == "float16":
            return "float32"
        if "int" not in self.dtype:
            return self.dtype
        inner = self.factor_shapes[0][1]
        return "float64" if self.item <= 2 and inner * 4 ** (8 * self.item) <= 2**53 else "int64"

    @property
    def flop(self) -> int:
        """Floating-point operations of one product; a user's function counts as ``A @ A``."""
        (m, k), (_, p) = (self.left, (0, max(self.left))) if self.result else self.factor_shapes
        return 2 * m * k * p


def check(problem: Problem, names: list[str], keep: str, total_weight: float | None) -> None:
    """Refuse factors that do not fit, and statistics that products and weights cannot give."""
    left, right, dtype = problem.left, problem.right, problem.product_dtype
    if not problem.result and (k := problem.factor_shapes[0][1]) != problem.factor_shapes[1][0]:
        cure = f"B must have {k} rows" if right else "use A.T @ A or A @ A.T"
        words = f"inner dimensions do not match: {left} and {right or left}"
        raise InputError(f"product {problem.product}: {words}; {cure}")
    if total_weight is not None and dtype == "int64":
        words = f"products of {dtype} are not weighed; save float64, or have a function return it"
        raise InputError(f"weights: {words}")
    others = set(STATISTICS) - set(OF_SUMS)
    single = "this needs each single product: use keep: products, or only sum and mean"
    rules = (
        (problem.labels, STATISTICS[1:], "with labels only sum is allowed, one per label"),
        (keep == "sum", others, single),
        (total_weight is not None, others, "with weights only sum and mean are allowed"),
        (total_weight == 0, ("mean",), "the weights add up to 0, so the mean would divide by 0"),
        ("complex" in dtype, ("min", "max"), f"products of {dtype} have no order"),
    )
    for applies, refused, why in rules:
        if applies and (found := [name for name in names if name in refused]):
            raise InputError(f"reduce.statistics: leave out {', '.join(found)}: {why}")
