"""Times products and their proof alone, on matrices already on the device, next to CuPy and cuBLAS.

TFLOP/s at 2 d³ operations per product, medians over rounds in which all peers take turns. Every
result is first compared with float64.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import cells
import harness
import numpy as np
from cells import Cell, square

STACK_BYTES = 256 * harness.MIB
LOOP_CALLS = 1024  # most calls in a timed loop: a call per matrix is slow if matrices are small
ROUNDS, ROUND_SECONDS = 5, 0.02
ERRORS = {"float64": 1e-12, "float32": 1e-4, "float16": 5e-3, "tf32x3": 1e-4}
"""Relative to the norm of a product of normal numbers."""
# From library_types.h and cublas_api.h: element type, and the type of the accumulation.
CUDA_R = {"float32": 0, "float64": 1, "float16": 2}
COMPUTE = {"float16": 68, "float32": 68, "tf32x3": 68, "float64": 70}

Call = Callable[[], Any]
CELLS = [
    *(square(a, d) for a in ("float32", "float16", "float64") for d in (32, 256, 1024, 4096)),
    *(square("tf32x3", d) for d in (1024, 4096, 8192)),
    *(square(a, 4096, "A.T @ A") for a in ("float32", "float64")),
]


def first(cell: Cell, a: Any) -> Any:
    """The first factor of a matrix or a stack."""
    return a.swapaxes(-1, -2) if cell.product == "A.T @ A" else a


# Each of these functions returns a call, and how many matrices that call multiplies.


def stacked_matmul(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Call, int]:
    """One ``matmul`` of the whole stack."""
    return lambda: xp.matmul(first(cell, a), a, out=out), len(a)


def loop_matmul(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Call, int]:
    """A ``matmul`` for each of the first `LOOP_CALLS` matrices."""
    triples = list(itertools.islice(zip(first(cell, a), a, out, strict=True), LOOP_CALLS))
    return lambda: [xp.matmul(x, y, out=z) for x, y, z in triples], len(triples)


def cublas_strided(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Call, int]:
    """The whole stack in one call of cuBLAS, the upper limit of the rate of small matrices."""
    from cupy_backends.cuda.libs import cublas

    wide = "f8" if cell.dtype == "float64" else "f4"
    one, zero = np.ones((), wide), np.zeros((), wide)
    kind, d = CUDA_R[cell.dtype], cell.left[0]
    # cuBLAS is column-major: it sees Aᵀ and writes Cᵀ, which is Aᵀ Aᵀ, or Aᵀ (Aᵀ)ᵀ.
    second = cublas.CUBLAS_OP_T if cell.product == "A.T @ A" else cublas.CUBLAS_OP_N
    own = a.data.ptr, kind, d, d * d
    return lambda: cublas.gemmStridedBatchedEx(
        xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, second, d, d, d, one.ctypes.data,
        *own, *own, zero.ctypes.data, out.data.ptr, *own[1:], len(a), COMPUTE[cell.arithmetic],
        cublas.CUBLAS_GEMM_DEFAULT,
    ), len(a)  # fmt: skip


def ours(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Call, int]:
    """The kernel of Shardwise."""
    run, call = cells.kernel(xp, cell, len(a))
    count = len(a) // call * call
    return lambda: run.multiply(a, None, out, count), count


def proof(xp: Any, cell: Cell, a: Any, out: Any) -> tuple[Call, int]:
    """The check of all products, which ``out`` already holds."""
    checker = cells.checker(xp, cell, 1, len(a))
    return lambda: checker.check(a, None, out), len(a)


STRIDED, PROOF = "strided cuBLAS", "proof"
PEERS = {"stacked matmul": stacked_matmul, "loop of matmul": loop_matmul,
         STRIDED: cublas_strided, "shardwise": ours, PROOF: proof}  # fmt: skip


def measure(xp: Any, cell: Cell, nbytes: int) -> dict[str, float]:
    """Seconds per matrix, of each peer and of the proof."""
    count = max(4, nbytes // cell.problem(1).matrix_bytes)
    a, _ = cells.factors(xp, cell, count, 0)
    out, clocks = xp.empty_like(a), {}
    for name, peer in PEERS.items():
        if name == STRIDED and xp is np:
            continue
        call, n = peer(xp, cell, a, out)
        if name != PROOF:
            out.fill(math.nan)
        call()  # the first one loads and compiles
        error = wrongness(xp, cell, a, out, n)
        assert error < ERRORS[cell.arithmetic], f"{cell}, {name}: wrong by {error:.1e} of the norm"
        calls = max(1, math.ceil(ROUND_SECONDS / n / seconds_of(xp, call, n, 1)))
        clocks[name] = functools.partial(seconds_of, xp, call, n, calls)
    turns = harness.in_turn(clocks, ROUNDS)
    return {name: float(np.median(seconds)) for name, seconds in turns.items()}


def seconds_of(xp: Any, call: Call, matrices: int, calls: int) -> float:
    """Seconds per matrix of several calls in a row, until the device has done them."""
    wait = (lambda: None) if xp is np else xp.cuda.Device().synchronize
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - begin) / calls / matrices


def wrongness(xp: Any, cell: Cell, a: Any, out: Any, count: int) -> float:
    """Largest error of the first and the last product, relative to its norm; NaN if unwritten."""
    errors = []
    for i in (0, count - 1):
        right = a[i].astype("float64")
        true = first(cell, right) @ right
        errors.append(xp.linalg.norm(out[i].astype("float64") - true) / xp.linalg.norm(true))
    return float(xp.stack(errors).max())  # NaN wins


def main() -> None:
    """Print the table."""
    tiny = harness.options(__doc__, {}).tiny
    xp = harness.array_module(tiny)
    harness.say(f"Kernels, {harness.machine(xp)}; TFLOP/s")
    harness.heading("product", "d", *list(PEERS)[:-1], "proof, % of the product")
    for cell in [square("float32", 4), square("float64", 16)] if tiny else CELLS:
        dim, seconds = cell.left[0], measure(xp, cell, 4096 if tiny else STACK_BYTES)
        rates = [2 * dim**3 / seconds.get(name, np.nan) / 1e12 for name in PEERS]
        percent = 100 * seconds.get(PROOF, np.nan) / seconds.get("shardwise", np.nan)
        harness.row(f"{cell.arithmetic}, {cell.product}", dim, *rates[:-1], percent)


if __name__ == "__main__":
    main()
