"""Arithmetic on counts and bytes: numbers in, table out. No files, no devices."""

from dataclasses import dataclass
from itertools import pairwise

MIB = 1024**2

SLAB_BYTES = 64 * MIB
"""Input and output bytes that a task holds at once, unless one matrix is larger."""

CHECK_BYTES = 32 * MIB
"""Widened bytes that the check of the products holds at once, unless one matrix is larger."""

PIECE_BYTES = 32 * MIB
"""Input bytes of a piece of the checksum, unless one matrix is larger."""

COPY_SLABS = 3
"""Slabs that are under way at once while a shard is copied."""

COPY_SPARE_BYTES = 16 * MIB
"""Beside each of these: pages around what is read, and parts of files in another order."""

MAX_AUTO_SHARDS = 1000
"""Under ``shards: auto`` shards grow rather than exceed this: one job a shard has a price."""

PYTHON_BYTES = 512 * MIB
"""Host memory of the interpreter, NumPy and the two Snakemake processes around a job."""

CUDA_BYTES = 768 * MIB
"""Host memory of a CUDA context and its libraries."""

# Rates that a slow node still reaches; run times asked for are a limit, not a forecast.
_SLOW_BYTES_PER_S = 50e6
_SLOW_FLOP_PER_S = 5e9
_START_MINUTES = 10

Shape = tuple[int, ...]


ITEM_BYTES = {
    **{"float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
    **{f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)},
}
"""Bytes of an element, by the name of its dtype."""


def product_dtype(dtype: str) -> str:
    """Element type of products: the input's own, int64 for integers."""
    return "int64" if "int" in dtype else dtype


def sum_dtype(dtype: str) -> str:
    """Element type of sums: float64, complex128 or int64."""
    if "int" in dtype:
        return "int64"
    return "complex128" if "complex" in dtype else "float64"


@dataclass(frozen=True)
class Problem:
    """What is computed, as numbers.

    Attributes
    ----------
    matrices
        Number of matrices N.
    left, right
        Shapes ``(m, k)`` of A and ``(k, p)`` of B; ``right`` is None where B is made from A.
    product
        ``A @ A``, ``A.T @ A``, ``A @ A.T`` or ``A @ B``.
    dtype
        Element type of the input, by name.
    shared_right
        True where one B serves all matrices.
    """

    matrices: int
    left: Shape
    product: str
    dtype: str
    right: Shape | None = None
    shared_right: bool = False

    @property
    def item(self) -> int:
        """Bytes of an element of the input."""
        return ITEM_BYTES[self.dtype]

    @property
    def product_item(self) -> int:
        """Bytes of an element of a product."""
        return ITEM_BYTES[product_dtype(self.dtype)]

    @property
    def sum_item(self) -> int:
        """Bytes of an element of a sum."""
        return ITEM_BYTES[sum_dtype(self.dtype)]

    @property
    def product_shape(self) -> Shape:
        """Shape ``(m, p)`` of one product."""
        (m, _), (_, p) = self.factor_shapes
        return (m, p)

    @property
    def factor_shapes(self) -> tuple[Shape, Shape]:
        """Shapes of the two factors, as multiplied."""
        m, k = self.left
        pairs = {
            "A @ A": ((m, k), (m, k)),
            "A.T @ A": ((k, m), (m, k)),
            "A @ A.T": ((m, k), (k, m)),
        }
        return pairs[self.product] if self.right is None else ((m, k), self.right)

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
        return self.product_shape[0] * self.product_shape[1] * self.product_item

    @property
    def work_bytes(self) -> int:
        """Bytes of one A and one B as they are multiplied: integers are widened to int64."""
        elements = (self.matrix_bytes + (0 if self.shared_right else self.right_bytes)) // self.item
        return elements * (self.item if self.item == self.product_item else self.product_item)

    @property
    def flop(self) -> int:
        """Floating-point operations of one product."""
        (m, k), (_, p) = self.factor_shapes
        return 2 * m * k * p


@dataclass(frozen=True)
class Shard:
    """One row of the plan; ``stop`` is exclusive, sizes are in bytes.

    ``matrices`` is a digest that changes with the matrices of the shard, ``fingerprint`` one that
    changes with anything its products depend on.
    """

    shard: str
    start: int
    stop: int
    bytes: int
    product_bytes: int
    memory: int
    matrices: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class Source:
    """One input file: matrices ``first`` to ``first + count`` of the stack.

    ``identity`` changes when the content may have changed: ``size:time stamp`` of a file, or the
    recipe of the synthetic stack; empty for a file that a receipt vouches for.
    """

    path: str
    first: int
    count: int
    identity: str


@dataclass(frozen=True)
class Stack:
    """A whole input: N matrices of one shape ``(m, k)`` and one dtype, over one file or many."""

    sources: tuple[Source, ...]
    matrices: int
    shape: tuple[int, int]
    dtype: str

    def between(self, start: int, stop: int) -> list[Source]:
        """The files that hold matrices ``start`` to ``stop``."""
        if len(self.sources) == self.matrices:  # one matrix a file: no search
            return list(self.sources[start:stop])
        return [s for s in self.sources if s.first < stop and start < s.first + s.count]


def shard_count(matrices: int, total_bytes: int, shards: int | str, shard_bytes: int) -> int:
    """Number of shards that the config asks for.

    Under ``auto``, as many as keep each at ``shard_bytes`` or less where a matrix allows it, at
    most :data:`MAX_AUTO_SHARDS`, and never more than there are matrices.
    """
    if shards != "auto":
        return int(shards)
    wanted = -(-total_bytes // shard_bytes)
    return max(1, min(wanted, MAX_AUTO_SHARDS, matrices))


def cut(matrices: int, shards: int) -> list[tuple[int, int]]:
    """Cut ``range(matrices)`` into contiguous ``(start, stop)`` runs.

    Every matrix is in exactly one run, and sizes differ by at most one.

    Raises
    ------
    ValueError
        Unless ``1 <= shards <= matrices``.
    """
    if not 1 <= shards <= matrices:
        raise ValueError(f"cannot cut {matrices} matrices into {shards} shards")
    return list(pairwise(matrices * i // shards for i in range(shards + 1)))


def shard_ids(shards: int) -> list[str]:
    """Zero-padded decimal ids, five digits or as many as are needed."""
    width = max(5, len(str(shards - 1)))
    return [f"{i:0{width}}" for i in range(shards)]


def slab_matrices(problem: Problem) -> int:
    """Matrices that a task holds at once: a slab; at least one."""
    largest = max(problem.work_bytes, problem.product_bytes)
    return max(1, SLAB_BYTES // largest)


def piece_bytes(problem: Problem) -> int:
    """Bytes of a piece of the checksum of a shard's matrices: whole matrices, at least one."""
    return max(1, PIECE_BYTES // problem.matrix_bytes) * problem.matrix_bytes


def copy_matrices(problem: Problem) -> int:
    """Matrices that are copied at once: whole pieces of the checksum, at least one."""
    piece = piece_bytes(problem)
    return max(1, SLAB_BYTES // piece) * (piece // problem.matrix_bytes)


def check_matrices(problem: Problem) -> int:
    """Matrices whose products are proven at once; at least one."""
    return max(1, CHECK_BYTES // _wide_bytes(problem))


def _wide_bytes(problem: Problem) -> int:
    """Bytes of one A, one B and one product, widened to the element type of sums."""
    (m, k), (_, p) = problem.factor_shapes
    return problem.sum_item * (m * k + k * p + m * p)


def task_memory(problem: Problem, count: int, keep: str, cuda: bool) -> int:
    """Host bytes that the task of a shard of ``count`` matrices needs at most.

    A slab of A, of B and of products, each with one converted copy; the one B that serves all;
    the widened matrices of the check and their moduli; and for ``keep: sum`` three arrays of the
    result.
    """
    slab = min(count, slab_matrices(problem))
    shared = problem.right_bytes * problem.product_item // problem.item
    slabs = 2 * (slab * (problem.work_bytes + problem.product_bytes) + shared)
    check = 2 * min(count, check_matrices(problem)) * _wide_bytes(problem)
    m, p = problem.product_shape
    partial = 3 * problem.sum_item * m * p if keep == "sum" else 0
    return PYTHON_BYTES + (CUDA_BYTES if cuda else 0) + slabs + check + partial


def synthetic_memory(problem: Problem) -> int:
    """Host bytes that the synthetic stack needs: one matrix as drawn, in pairs, and as stored."""
    return PYTHON_BYTES + 4 * max(16, problem.item) * problem.left[0] * problem.left[1]


def copy_memory(problem: Problem) -> int:
    """Host bytes that materializing a shard needs at most."""
    slab = min(problem.matrices, copy_matrices(problem)) * problem.matrix_bytes
    return PYTHON_BYTES + COPY_SLABS * (slab + COPY_SPARE_BYTES)


def reduce_memory(problem: Problem, ranks: int) -> int:
    """Host bytes of all ranks of the reduce: a block and two accumulators each, and the whole."""
    result = problem.sum_item * problem.product_shape[0] * problem.product_shape[1]
    block = max(SLAB_BYTES, problem.product_bytes)
    return ranks * (PYTHON_BYTES + 2 * block) + 4 * result


def minutes(total_bytes: int, flop: int = 0) -> int:
    """Run time to ask for, in minutes: start-up, bytes over a slow disk, work on a slow CPU."""
    seconds = total_bytes / _SLOW_BYTES_PER_S + flop / _SLOW_FLOP_PER_S
    return _START_MINUTES + int(seconds / 60)


def table(problem: Problem, shards: int, keep: str, cuda: bool) -> list[Shard]:
    """The rows of the plan, digests left empty.

    Raises
    ------
    ValueError
        Unless ``1 <= shards <= problem.matrices``.
    """
    runs = cut(problem.matrices, shards)
    partial = problem.sum_item * problem.product_shape[0] * problem.product_shape[1]
    rows = []
    for shard, (start, stop) in zip(shard_ids(shards), runs, strict=True):
        count = stop - start
        rows.append(
            Shard(
                shard=shard,
                start=start,
                stop=stop,
                bytes=count * problem.matrix_bytes,
                product_bytes=partial if keep == "sum" else count * problem.product_bytes,
                memory=task_memory(problem, count, keep, cuda),
            )
        )
    return rows
