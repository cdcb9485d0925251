"""Products, their proof and their sum alone, matrices already on the device.

Products beside CuPy and cuBLAS: TFLOP/s at 2 d³ operations each, medians over rounds in which all
take turns in an order of their own, as a device at its power limit slows down whatever follows
heavy work. Every result is first compared with float64. Then sums of float32 products, in GB/s of
products: the tree beside ``+=`` of one after the other, and ``sum(axis=0)`` of a batch.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
import numpy as np

STACK_BYTES = 256 * harness.MIB
LOOP_CALLS = 1024  # calls of a loop that are timed: one per matrix is slow where matrices are small
ROUNDS, ROUND_SECONDS, CELL_SECONDS = 5, 0.02, 4.0
BATCHES, SUM_CALLS = ((4096, 4), (4096, 1), (1024, 64), (256, 1024), (32, 65536)), 20
ERRORS = {"float64": 1e-12, "float32": 1e-4, "float16": 5e-3, "tf32x3": 1e-4}
"""Relative to the norm of a product of normal numbers."""
# From library_types.h and cublas_api.h: element type, and the type of the accumulation.
CUDA_R = {"float32": 0, "float64": 1, "float16": 2}
COMPUTE = {"float16": 68, "float32": 68, "tf32x3": 68, "float64": 70}

Multiply = Callable[[], Any]


class Cell(NamedTuple):
    """One row; tf32x3 is float32 with that precision."""

    arithmetic: str
    dim: int
    product: str = "A @ A"

    @property
    def dtype(self) -> str:
        """Of the elements."""
        return "float32" if self.arithmetic == "tf32x3" else self.arithmetic


CELLS = [
    *(Cell(a, d) for a in ("float32", "float16", "float64") for d in (32, 256, 1024, 4096)),
    *(Cell("tf32x3", d) for d in (1024, 4096, 8192)),
    *(Cell(a, 4096, "A.T @ A") for a in ("float32", "float64")),
]


def stacked_matmul(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """One ``matmul`` of the whole stack."""
    left = a.transpose(0, 2, 1) if cell.product == "A.T @ A" else a
    return lambda: xp.matmul(left, a, out=out), len(a)


def loop_matmul(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """A ``matmul`` for each matrix, of the first ones where they are many."""
    count = min(len(a), LOOP_CALLS)
    left = a.transpose(0, 2, 1) if cell.product == "A.T @ A" else a
    triples = [(left[i], a[i], out[i]) for i in range(count)]
    return lambda: [xp.matmul(x, y, out=z) for x, y, z in triples], count


def cublas_strided(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """The whole stack in one call of cuBLAS, which is the ceiling of small matrices."""
    if xp is np:
        raise RuntimeError("needs a GPU")
    from cupy_backends.cuda.libs import cublas

    one, zero = (
        make((), "f8" if cell.dtype == "float64" else "f4") for make in (np.ones, np.zeros)
    )
    kind, d = CUDA_R[cell.dtype], cell.dim
    # cuBLAS counts columns first: it sees Aᵀ and writes Cᵀ, which is Aᵀ Aᵀ, or Aᵀ (Aᵀ)ᵀ.
    second = cublas.CUBLAS_OP_T if cell.product == "A.T @ A" else cublas.CUBLAS_OP_N
    own = a.data.ptr, kind, d, d * d
    return lambda: cublas.gemmStridedBatchedEx(
        xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, second, d, d, d, one.ctypes.data,
        *own, *own, zero.ctypes.data, out.data.ptr, *own[1:], len(a), COMPUTE[cell.arithmetic],
        cublas.CUBLAS_GEMM_DEFAULT,
    ), len(a)  # fmt: skip


def ours(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """The kernel of Shardwise."""
    from shardwise.numerics.gemm import kernel
    from shardwise.plan.memory import call_matrices
    from shardwise.plan.problem import Problem

    problem = Problem(len(a), (cell.dim, cell.dim), cell.product, cell.dtype)
    call = 1 if xp is np else call_matrices(problem)
    count = len(a) // call * call
    run = kernel(xp, problem, "tf32x3" if cell.arithmetic == "tf32x3" else "ieee")
    return lambda: run.multiply(a, None, out, count), count


def proof(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """The search for NaN in A and the check of all products, which are there."""
    from shardwise.numerics import freivalds
    from shardwise.numerics.tolerances import CheckSpec

    compute = "float32" if cell.arithmetic == "float16" else cell.arithmetic
    shape = (cell.dim, cell.dim)
    spec = CheckSpec(cell.product, shape, None, cell.dtype, compute, 1, len(a))
    checker = freivalds.Checker(xp, spec)
    return lambda: (checker.largest(a), checker.check(a, None, out)), len(a)


PEERS = {"stacked matmul": stacked_matmul, "loop of matmul": loop_matmul,
         "strided cuBLAS": cublas_strided, "shardwise": ours}  # fmt: skip


def measure(xp: Any, cell: Cell, nbytes: int, table: harness.Table) -> dict[str, float]:
    """Seconds that one matrix takes, by peer, and its proof."""
    count = max(4, nbytes // (cell.dim**2 * np.dtype(cell.dtype).itemsize))
    a = harness.normal(xp, (count, cell.dim, cell.dim), cell.dtype)
    out = xp.empty_like(a)
    ready: dict[str, tuple[Multiply, int, int]] = {}
    for name, peer in [*PEERS.items(), ("proof", proof)]:
        try:
            multiply, n = peer(xp, cell, a, out)
            if name != "proof":
                out.fill(math.nan)
            multiply()  # the first call loads and compiles
            if not (error := wrongness(xp, cell, a, out, n)) < ERRORS[cell.arithmetic]:
                raise ArithmeticError(f"wrong by {error:.1e} of the norm")
            once = harness.seconds_of(xp, multiply, 1)
            ready[name] = multiply, n, max(1, math.ceil(ROUND_SECONDS / once))
        except Exception as error:
            table.note(f"{name}: {harness.reason(error)}")
    found: dict[str, list[float]] = {name: [] for name in ready}
    order = np.random.default_rng(cell.dim)
    for _ in range(ROUNDS):
        for name in order.permutation(list(ready)).tolist():
            multiply, n, calls = ready[name]
            found[name].append(harness.seconds_of(xp, multiply, calls) / n)
    return {name: float(np.median(seconds)) for name, seconds in found.items()}


def wrongness(xp: Any, cell: Cell, a: Any, out: Any, count: int) -> float:
    """Largest error of the first and the last product, relative to its norm; NaN if unwritten."""
    errors = []
    for i in (0, count - 1):
        right = a[i].astype("float64")
        true = (right.T if cell.product == "A.T @ A" else right) @ right
        errors.append(xp.linalg.norm(out[i].astype("float64") - true) / xp.linalg.norm(true))
    return float(xp.stack(errors).max())  # NaN wins


def products(xp: Any, tiny: bool, budget: harness.Budget) -> None:
    """Measure cell by cell and print the table."""
    headings = ["product", "d", *PEERS, "to the best", "proof, % of the product"]
    table = harness.Table(headings)
    for cell in CELLS if not tiny else [Cell("float32", 4), Cell("float64", 16)]:
        if budget.left <= (0 if tiny else CELL_SECONDS):
            table.note(f"{cell.arithmetic}, d = {cell.dim}: skipped, out of time")
            continue
        seconds = measure(xp, cell, 4096 if tiny else STACK_BYTES, table)
        rates = {name: 2 * cell.dim**3 / s / 1e12 for name, s in seconds.items()}
        best = max((rate for name, rate in rates.items() if name in list(PEERS)[:-1]), default=None)
        checked = harness.ratio(seconds.get("proof"), seconds.get("shardwise"))
        cells = [rates.get(name) for name in PEERS]
        against = harness.ratio(rates.get("shardwise"), best), checked and 100 * checked
        table.row([f"{cell.arithmetic}, {cell.product}", cell.dim, *cells, *against])
    table.end()


def sums(xp: Any, dim: int, count: int) -> list[float]:
    """Rates of the tree, of ``+=`` and of ``sum(axis=0)``."""
    from shardwise.numerics.tree import TreeSum

    block = harness.normal(xp, (count, dim, dim), "float32")
    tree = TreeSum(xp, block.shape[1:], block.dtype.name)
    total, places = xp.zeros(block.shape[1:]), itertools.count(0, count)
    ways: list[tuple[Multiply, Any]] = [
        (lambda: tree.add(block, next(places)), block),
        # One launch each: a few tell the rate.
        (lambda: [xp.add(total, p, out=total) for p in block[:64]], block[:64]),
        (lambda: xp.add(total, block.sum(axis=0, dtype="f8"), out=total), block),
    ]
    turns = [
        [some.nbytes / harness.seconds_of(xp, call, SUM_CALLS) / 1e9 for call, some in ways]
        for _ in range(ROUNDS)
    ]
    return np.median(turns, axis=0).tolist()


def main() -> None:
    """Print both tables."""
    options = harness.parser(__doc__).parse_args()
    xp = harness.array_module(options.tiny)
    harness.say(f"Kernels on {harness.device_name(xp)}, {harness.machine()}; TFLOP/s, then GB/s")
    products(xp, options.tiny, harness.Budget(options.minutes))
    table = harness.Table(["d", "batch", "tree", "+=", "sum(axis=0)"])
    for dim, count in BATCHES if not options.tiny else [(4, 8)]:
        table.row([dim, count, *sums(xp, dim, count)])
    table.end()


if __name__ == "__main__":
    main()
