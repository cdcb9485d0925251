"""The multiplication alone, slabs already on the device, beside CuPy, cuBLAS and PyTorch.

Each figure is a median over rounds in which all take turns; TFLOP/s count 2 d³ a product, also
where a kernel needs fewer. Every result is first compared with a product in float64. ``--only
precision`` takes a few seconds: float32 in each precision, with its errors.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np

DTYPES = ("float64", "float32", "float16")
DIMS = (32, 128, 256, 512, 1024, 4096, 8192)
SYMMETRIC_DIMS = (512, 1024, 4096, 8192)
STACK_BYTES = 256 * harness.MIB
SMALL = 512  # up to here a product moves so few numbers that bytes per second tell more
LOOP_CALLS = 1024  # calls of a loop that are timed: one per matrix is slow where matrices are small
ROUNDS = 5
CALLS = 4  # of a turn, in the table of precisions
ROUND_SECONDS = 0.02  # of one peer's turn, where one call is shorter
CELL_SECONDS = 6.0  # not begun with less time left
PRECISIONS = ("ieee", "tf32x3", "tf32")
PRECISION_DIMS = (2048, 4096, 8192)
KINDS = ("normal", "uniform", "wide", "ill-conditioned")
ERRORS = {"float64": 1e-12, "float32": 1e-4, "float16": 5e-3, "tf32x3": 1e-4, "tf32": 5e-3}
"""Relative to the norm of a product; standard normal factors, any order of summation."""

# From library_types.h and cublas_api.h: element type, and the type of the accumulation.
CUDA_R = {"float32": 0, "float64": 1, "float16": 2}
CUBLAS_COMPUTE = {"float16": 68, "float32": 68, "tf32x3": 68, "tf32": 77, "float64": 70}

Multiply = Callable[[], Any]


@dataclass(frozen=True)
class Cell:
    """One row: what is multiplied."""

    dtype: str
    dim: int
    product: str
    precision: str

    @property
    def arithmetic(self) -> str:
        """What decides the error: tf32, tf32x3 (whose peers take float32), or the element type."""
        return self.dtype if self.precision == "ieee" else self.precision

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        return self.dim**2 * np.dtype(self.dtype).itemsize

    def matrices(self, stack_bytes: int) -> int:
        """How many fill a stack; at least four."""
        return max(4, stack_bytes // self.matrix_bytes)


# One peer a function: given the cell, the stack (n, d, d) and where the products go, it returns
# a call that makes all of them, and how many these are.


def stacked_matmul(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """One ``matmul`` of the whole stack."""
    left = a.transpose(0, 2, 1) if cell.product == "A.T @ A" else a
    return lambda: xp.matmul(left, a, out=out), len(a)


def loop_matmul(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """A ``matmul`` for each matrix, of the first ones where they are many."""
    count = min(len(a), LOOP_CALLS)
    rights, products = [a[i] for i in range(count)], [out[i] for i in range(count)]
    lefts = [b.T if cell.product == "A.T @ A" else b for b in rights]

    def multiply() -> None:
        for left, right, product in zip(lefts, rights, products, strict=True):
            xp.matmul(left, right, out=product)

    return multiply, count


def cublas_strided(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """The whole stack in one call of cuBLAS, which is the ceiling of small matrices."""
    if xp is np:
        raise RuntimeError("needs a GPU")
    from cupy_backends.cuda.libs import cublas

    wide = "float64" if cell.dtype == "float64" else "float32"
    one, zero = np.ones((), wide), np.zeros((), wide)
    kind, d = CUDA_R[cell.dtype], cell.dim
    # cuBLAS counts columns first: it sees Aᵀ and writes Cᵀ. For C = A A, Cᵀ = Aᵀ Aᵀ. For
    # C = Aᵀ A, which is symmetric, C = Aᵀ (Aᵀ)ᵀ.
    second = cublas.CUBLAS_OP_T if cell.product == "A.T @ A" else cublas.CUBLAS_OP_N

    def multiply() -> None:
        cublas.gemmStridedBatchedEx(
            xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, second, d, d, d,
            one.ctypes.data, a.data.ptr, kind, d, d * d, a.data.ptr, kind, d, d * d,
            zero.ctypes.data, out.data.ptr, kind, d, d * d,
            len(a), CUBLAS_COMPUTE[cell.arithmetic], cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    return multiply, len(a)


def torch_bmm(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """``torch.bmm`` of the whole stack, on the same memory."""
    import torch

    torch.set_float32_matmul_precision("high" if cell.precision == "tf32" else "highest")
    where = "cpu" if xp is np else "cuda"
    stack, product = torch.as_tensor(a, device=where), torch.as_tensor(out, device=where)
    left = stack.transpose(1, 2) if cell.product == "A.T @ A" else stack
    return lambda: torch.bmm(left, stack, out=product), len(a)


def ours(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Multiply, int]:
    """The kernel of Shardwise; nothing else here knows how it is called."""
    from shardwise.numerics.gemm import kernel
    from shardwise.plan.memory import call_matrices
    from shardwise.plan.problem import Problem

    shape = (cell.dim, cell.dim)
    problem = Problem(matrices=len(a), left=shape, product=cell.product, dtype=cell.dtype)
    count = len(a) if xp is np else len(a) // call_matrices(problem) * call_matrices(problem)
    run = kernel(xp, problem, cell.precision)
    return lambda: run.multiply(a, None, out, count), count


PEERS = {
    "stacked matmul": stacked_matmul,
    "loop of matmul": loop_matmul,
    "strided cuBLAS": cublas_strided,
    "torch.bmm": torch_bmm,
    "shardwise": ours,
}
OURS = "shardwise"


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All rows in the order of the table."""
    for dtype in options.dtypes:
        for dim in options.dims:
            yield Cell(dtype, dim, "A @ A", "ieee")
    for precision in ("tf32x3", "tf32"):
        if "float32" in options.dtypes and precision in options.precision:
            for dim in options.dims:
                yield Cell("float32", dim, "A @ A", precision)
    for dtype in options.dtypes:
        for dim in options.dims if options.tiny else SYMMETRIC_DIMS:
            if dtype != "float16" and dim in options.dims:
                yield Cell(dtype, dim, "A.T @ A", "ieee")


def measure(xp: Any, cell: Cell, stack_bytes: int) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds that one matrix takes, and why where there are none, by peer."""
    a = harness.normal(xp, (cell.matrices(stack_bytes), cell.dim, cell.dim), cell.dtype)
    out = xp.empty_like(a)
    ready: dict[str, tuple[Multiply, int, int]] = {}
    failed: dict[str, str] = {}
    for name, peer in PEERS.items():
        try:
            _switch_tf32(xp, cell)
            multiply, count = peer(xp, cell, a, out)
            out.fill(math.nan)
            multiply()  # the first call loads and compiles
            error = wrongness(xp, cell, a, out, count)
            if not error < ERRORS[cell.arithmetic]:
                raise ArithmeticError(f"wrong by {error:.1e} of the norm")
            once = harness.seconds_of(xp, multiply, 1)
            ready[name] = (multiply, count, max(1, math.ceil(ROUND_SECONDS / once)))
        except Exception as error:
            failed[name] = harness.reason(error)
    rounds: dict[str, list[float]] = {name: [] for name in ready}
    order = np.random.default_rng(cell.dim)
    for _ in range(ROUNDS):
        # In another order each time: a device that is at its power limit slows down whoever comes
        # after heavy work.
        for name in order.permutation(list(ready)).tolist():
            multiply, count, calls = ready[name]
            if name in failed:
                continue
            try:
                rounds[name].append(harness.seconds_of(xp, multiply, calls) / count)
            except Exception as error:
                failed[name] = harness.reason(error)
    return {n: float(np.median(t)) for n, t in rounds.items() if n not in failed}, failed


def _switch_tf32(xp: Any, cell: Cell) -> None:
    """CuPy's own ``matmul`` takes tf32 from a switch of the process."""
    if xp is not np:
        from cupy._core import _routines_linalg as linalg

        tf32 = cell.precision == "tf32"
        kind = linalg.COMPUTE_TYPE_TF32 if tf32 else linalg.COMPUTE_TYPE_DEFAULT
        linalg.set_compute_type(np.float32, kind)
    elif cell.precision == "tf32":
        raise RuntimeError("needs a GPU")


def wrongness(xp: Any, cell: Cell, a: Any, out: Any, count: int) -> float:
    """Largest error of the first and the last product, relative to its norm; NaN if unwritten."""
    errors = []
    for i in (0, count - 1):
        right = a[i].astype("float64")
        true = (right.T if cell.product == "A.T @ A" else right) @ right
        errors.append(xp.linalg.norm(out[i].astype("float64") - true) / xp.linalg.norm(true))
    return float(xp.stack(errors).max())  # NaN wins


def add_row(table: harness.Table, cell: Cell, matrices: int, found: Any) -> None:
    """One row of the table, and its remarks."""
    seconds, failed = found
    tflops = {name: 2 * cell.dim**3 / s / 1e12 for name, s in seconds.items()}
    own = tflops.get(OURS)
    best = max((v for name, v in tflops.items() if name != OURS), default=None)
    moved = 2 * cell.matrix_bytes / seconds[OURS] / harness.GB if OURS in seconds else None
    label = f"{cell.arithmetic}, {cell.product}"
    columns = [tflops.get(name, "failed" if name in failed else None) for name in PEERS]
    table.row(
        [label, cell.dim, matrices, *columns, moved if cell.dim <= SMALL else None,
         harness.ratio(own, best), harness.ratio(own, tflops.get("strided cuBLAS"))],
        {**vars(cell), "seconds_a_matrix": seconds, "tflops": tflops, "failed": failed},
    )  # fmt: skip
    for name, why in failed.items():
        table.note(f"{name}: {why}")


def factor(xp: Any, kind: str, dim: int) -> Any:
    """A float32 matrix ``(d, d)``; of the ill-conditioned ones, terms of a product cancel."""
    if kind == "uniform":
        return xp.random.default_rng(dim).random((dim, dim), dtype=np.float32)
    made = harness.normal(xp, (dim, dim), "float32")
    if kind == "wide":
        made *= xp.exp2(xp.random.default_rng(dim).integers(-20, 21, (dim, dim)).astype("float32"))
    if kind == "ill-conditioned":
        made = 1 + made / 4096
        made[:, : dim // 2] *= -1
    return made


def worst(xp: Any, a: Any, product: Any) -> float:
    """The largest error of an element of A @ A, relative to that of ``|A| |A|``."""
    wide = a.astype("float64")
    error = abs(product - wide @ wide)
    return float((error / (abs(wide) @ abs(wide))).max())


def precisions(
    xp: Any, options: argparse.Namespace, stack_bytes: int, budget: harness.Budget
) -> None:
    """The table of float32 in each precision: its rate on normal numbers, and its worst errors."""
    errors = [f"error, {kind}" for kind in KINDS]
    table = harness.Table("precision", ["precision", "d", "TFLOP/s", *errors], options.json)
    for dim in options.precision_dims:
        if budget.left <= (0 if options.tiny else CELL_SECONDS):
            table.note(f"precision, d = {dim}: skipped, out of time")
            continue
        matrices = Cell("float32", dim, "A @ A", "ieee").matrices(stack_bytes)
        a = harness.normal(xp, (matrices, dim, dim), "float32")
        out = xp.empty_like(a)
        names = [name for name in PRECISIONS if name in options.precision]
        runs = {name: ours(xp, Cell("float32", dim, "A @ A", name), a, out) for name in names}
        rounds: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(1 + ROUNDS):  # the first one loads and compiles
            for name in harness.in_turn(runs, number):
                multiply, count = runs[name]
                rounds[name].append(harness.seconds_of(xp, multiply, CALLS) / count)
        found: dict[str, list[float]] = {name: [] for name in runs}
        for kind in KINDS:
            a[0] = factor(xp, kind, dim)
            for name, (multiply, _) in runs.items():
                multiply()
                found[name].append(worst(xp, a[0], out[0]))
        for name in runs:
            rate = 2 * dim**3 / float(np.median(rounds[name][1:])) / 1e12
            table.row([name, dim, rate, *found[name]], {"errors": found[name]})
    table.end()


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = harness.parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--dims", nargs="+", type=int, default=list(DIMS))
    parser.add_argument("--precision", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--only", choices=["kernels", "precision"], help="one of the two tables")
    parser.set_defaults(precision_dims=PRECISION_DIMS)
    return parser


def kernels(xp: Any, options: argparse.Namespace, stack_bytes: int, budget: harness.Budget) -> None:
    """The table of all kernels beside their peers."""
    headings = ["product", "d", "matrices", *PEERS, "shardwise GB/s", "to the best", "to cuBLAS"]
    table = harness.Table("kernels", headings, options.json)
    for cell in cells(options):
        matrices = cell.matrices(stack_bytes)
        if budget.left <= (0 if options.tiny else CELL_SECONDS):
            table.note(f"{cell.arithmetic}, {cell.product}, d = {cell.dim}: skipped, out of time")
            continue
        try:
            found = measure(xp, cell, stack_bytes)
        except Exception as error:  # the stack itself did not fit, or the device is lost
            found = {}, dict.fromkeys(PEERS, harness.reason(error))
        add_row(table, cell, matrices, found)
        if xp is not np:
            xp.get_default_memory_pool().free_all_blocks()
    table.end()


def main() -> None:
    """Measure cell by cell and print the table."""
    options = arguments().parse_args()
    if options.tiny:
        options.dims, options.precision, options.precision_dims = [4, 16], ["ieee"], [16]
    xp = harness.array_module(options.tiny)
    stack_bytes = 4096 if options.tiny else STACK_BYTES
    budget = harness.Budget(options.minutes)
    harness.say(f"Kernels on {harness.device_name(xp)}, {harness.machine()}; TFLOP/s")
    if options.only != "precision":
        kernels(xp, options, stack_bytes, budget)
    if options.only != "kernels":
        precisions(xp, options, stack_bytes, budget)


if __name__ == "__main__":
    main()
