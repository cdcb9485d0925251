"""The kernels: which routine multiplies a batch of matrices, chosen by dtype and shape alone.

On a GPU a floating-point product is a strided-batched GEMM of cuBLAS, called for a fixed number of
matrices, or a rank-k update if it is large and symmetric or Hermitian. On NumPy it is
``numpy.matmul``, which uses a rank-k update for any product of a matrix and its own transpose, also
in a stack. The choice never depends on how many matrices come, on free memory or on the number of
processors, so neither do a product's bits.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError
from shardwise.numerics.tolerances import split_chunk
from shardwise.numerics.tree import sums_of_columns
from shardwise.plan import memory
from shardwise.plan.problem import Problem
from shardwise.processes import threads

# The cudaDataType_t of each dtype.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "complex64": 4, "complex128": 5}
_NO_REDUCED_PRECISION = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
# The first letter of routines of rank-k updates, and the element type that the mirror moves.
_RANK_K = {
    "float32": ("s", "float"), "float64": ("d", "double"),
    "complex64": ("c", "float2"), "complex128": ("z", "double2"),
}  # fmt: skip
# From this many rows on, a rank-k update beats a whole product (measured: docs/performance.md).
_SYMMETRIC_ROWS = 2048

_MIRROR = r"""
// Copy the upper triangle of square matrices (row-major, n by n), so far apart, to the lower one,
// conjugated where they are Hermitian.
template <typename T, bool hermitian>
__global__ void mirror(T* block, long long n, long long distance) {
    __shared__ T tile[32][33];
    if (blockIdx.y > blockIdx.x) return;  // a tile below the diagonal is written by its mirror
    T* matrix = block + blockIdx.z * distance;
    long long row = 32LL * blockIdx.y, column = 32LL * blockIdx.x;
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        if (row + i < n && column + threadIdx.x < n)
            tile[i][threadIdx.x] = matrix[(row + i) * n + column + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        long long r = column + i, c = row + threadIdx.x;
        T x = tile[threadIdx.x][i];
        if constexpr (hermitian) x.y = -x.y;
        if (r < n && c < n && r > c) matrix[r * n + c] = x;
    }
}
"""

_SPLIT = r"""
// Numbers a as high + low / 2048, both of 11 significant bits, which tf32 takes as they are.
__device__ float rounded(float number) {  // to nearest, ties to even
    unsigned int bits = __float_as_uint(number);
    // Numbers past the largest of tf32 are cut: rounded up they would be infinite.
    if ((bits & 0x7fffffffu) < 0x7f7ff000u) bits += 0x0fffu + (bits >> 13 & 1u);
    return __uint_as_float(bits & 0xffffe000u);
}
extern "C" __global__ void split(const float* a, float* high, float* low, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    high[i] = rounded(a[i]);
    // In PTX, because cupy compiles with -ftz=true: what is left of small numbers is subnormal.
    float rest;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(rest) : "f"(a[i]), "f"(high[i]));
    asm("mul.rn.f32 %0, %1, 0f45000000;" : "=f"(rest) : "f"(rest));  // 2048, which is exact
    low[i] = rounded(rest);
}
"""


def kernel(xp: Any, problem: Problem, precision: str) -> Any:
    """The kernel of a problem: an object with ``multiply`` and ``compute``.

    ``precision`` is ``ieee``, ``tf32x3`` or ``tf32``. NumPy has no tf32 and computes in float32,
    which is as exact as tf32x3 and takes one product instead of three.
    """
    if xp is np or problem.product_dtype == "int64":
        return MatmulKernel(xp, problem)
    return CublasKernel(xp, problem, precision)


def factors(problem: Problem, block: Any, other: Any) -> tuple[Any, Any]:
    """The two factors of a product, as stacks; transposes are views, and nothing is conjugated."""
    stacks = {"A": block, "B": other}
    left, right = (
        stacks[factor.name].swapaxes(-1, -2) if factor.turned else stacks[factor.name]
        for factor in problem.operands
    )
    return left, right


def symmetric(problem: Problem) -> bool:
    """Whether it pays to compute half of each product: if large, and symmetric or Hermitian."""
    left, right = problem.operands
    large = problem.product_shape[1] >= _SYMMETRIC_ROWS
    return large and left.name == right.name and left.turned != right.turned


class MatmulKernel:
    """Products by ``xp.matmul``: all on NumPy, which calls BLAS per matrix; integers on a GPU too.

    Products of integers are exact int64. They are computed in float64, which BLAS supports, if no
    inner product can pass 2⁵³; else in int64, and the caller has checked that they fit. ``compute``
    is the name of the dtype in which inner products are accumulated.
    """

    def __init__(self, xp: Any, problem: Problem) -> None:
        self._xp, self._problem = xp, problem
        self.compute = problem.compute_dtype
        if xp is np:
            self._single_threaded_blas = threads.single_threaded_blas()

    def multiply(self, block: Any, other: Any, out: Any, count: int) -> None:
        """Write the first ``count`` products of a batch to ``out``; see `CublasKernel.multiply`."""
        call = partial(self._multiply, block, other, out)
        if self._xp is not np:
            call(0, count)
            return
        wide = self.compute != self._problem.dtype
        with self._single_threaded_blas():
            few = max(1, memory.HOST_BATCH_BYTES // self._problem.widened_bytes)
            threads.split(count, call, few if wide else count)

    def _multiply(self, block: Any, other: Any, out: Any, low: int, high: int) -> None:
        """Products ``low`` to ``high``; of a matrix times its transpose NumPy computes half.

        Those of copies, widened or conjugated, are computed one by one or a few at a time, as
        copies of all would double the memory.
        """
        problem, conjugated = self._problem, [each.conjugated for each in self._problem.operands]
        few = memory.CONJUGATED_BYTES // problem.matrix_bytes if any(conjugated) else high - low
        single = self.compute != problem.dtype or self._xp is not np
        for first in range(low, high, 1 if single else max(1, few)):
            part = first if single else slice(first, min(first + max(1, few), high))
            own = other[part] if other is not None and other.ndim == 3 else other
            left, right = factors(problem, self._wide(block[part]), self._wide(own))
            left = left.conj() if conjugated[0] else left
            right = right.conj() if conjugated[1] else right
            products = out[part][..., : left.shape[-2], :]
            if single:
                products[...] = left @ right
            else:
                np.matmul(left, right, out=products)
            if problem.covariance:
                out[part][..., -1, :] = self._xp.ones(right.shape[-2], self.compute) @ right

    def _wide(self, matrix: Any) -> Any:
        return matrix if matrix is None else matrix.astype(self.compute, copy=False)


class CublasKernel:
    """Products by cuBLAS.

    ``tf32`` rounds both factors of float32 and complex64 products to 11 significant bits.
    ``tf32x3`` splits each of them into two numbers of 11 bits, ``a = h + l / 2048``, and adds
    three such products: ``(l h + h l) / 2048``, then ``h h`` in chunks along the inner dimension,
    because tensor cores cut off digits as they add. After H. Ootomo and R. Yokota, IJHPCA 36(4),
    2022; without the factor 2048 small numbers would lose ``l``. ``compute`` is the name of the
    arithmetic: a dtype, ``tf32x3`` or ``tf32``.
    """

    def __init__(self, xp: Any, problem: Problem, precision: str) -> None:
        self._xp, self._problem = xp, problem
        self._cublas = xp.cuda.cublas
        self._handle = xp.cuda.device.get_cublas_handle()
        self._dtype = np.dtype(problem.dtype)
        tf32 = precision != "ieee" and problem.dtype in ("float32", "complex64")
        self.compute = precision if tf32 else problem.compute_dtype
        wide = problem.dtype in ("float64", "complex128")
        kind = "32F_FAST_TF32" if tf32 else "64F" if wide else "32F"
        self._compute_type = getattr(self._cublas, f"CUBLAS_COMPUTE_{kind}")
        # Partial sums of a product that is split along k would be rounded to float16 otherwise.
        self._cublas.setMathMode(self._handle, _NO_REDUCED_PRECISION)
        # cuBLAS reads the scalars from this memory during a call, so the arrays have to live on.
        scalar = np.dtype("float32") if problem.dtype == "float16" else self._dtype
        self._one, self._zero = np.ones(1, scalar), np.zeros(1, scalar)
        self._small = np.full(1, 1 / 2048, scalar)
        self._per_call = problem.call_matrices
        # Zeroed stacks for one call, with rows padded so that tensor cores can load them.
        shapes = problem.padded_shapes.items()
        self._space = {k: xp.zeros((self._per_call, *s), self._dtype) for k, s in shapes}
        # For the stacks of one call: their high parts [0] and their low parts [1].
        halves = problem.split_shapes(precision).items()
        self._halves = {k: xp.empty((2, *shape), self._dtype) for k, shape in halves}
        if self._halves:
            self._split = xp.RawModule(code=_SPLIT).get_function("split")
        self._half = symmetric(problem) and not tf32 and problem.dtype in _RANK_K
        if self._half:
            letter, element = _RANK_K[problem.dtype]
            hermitian = any(factor.conjugated for factor in problem.operands)
            self._update = _rank_k_update(xp, letter + ("herk" if hermitian else "syrk"))
            name = f"mirror<{element}, {str(hermitian).lower()}>"
            module = xp.RawModule(code=_MIRROR, options=("-std=c++17",), name_expressions=(name,))
            self._mirror = module.get_function(name)

    def multiply(self, block: Any, other: Any, out: Any, count: int) -> None:
        """Write the first ``count`` products of a batch to ``out``, on the current stream.

        The arrays are C-contiguous stacks ``(n, m, k)``, ``(n, k, p)`` and ``(n, m, p)``;
        ``other`` may be one matrix ``(k, p)`` for all, or None. ``n`` is a multiple of
        `Problem.call_matrices`: calls are always whole, so more of ``out`` is overwritten.
        """
        each = other is not None and other.ndim == 3
        right = self._prepared("right", other) if other is not None and not each else None
        rows = self._problem.factor_shapes[0][0]
        for low in range(0, count, self._per_call):
            part = slice(low, low + self._per_call)
            if self._problem.covariance:
                out[part, -1] = sums_of_columns(self._xp, block[part])
            left = self._prepared("left", block[part])
            if each:
                right = self._prepared("right", other[part])
            products = out[part, :rows]
            product = self._space.get("out", products)
            if self._half:
                self._rank_k(left, product)
            elif self._halves:
                self._multiply_halves(left, right, product)
            else:
                self._gemm(*factors(self._problem, left, right), product)
            if self._space:
                self._xp.copyto(products, _corner(product, products))

    def _prepared(self, key: str, stack: Any) -> Any:
        """Factors of a call as they are multiplied: padded, and split into high and low parts."""
        if self._space:
            space = self._space[key] if stack.ndim == 3 else self._space[key][0]
            self._xp.copyto(_corner(space, stack), stack)
            stack = space
        if not self._halves:
            return stack
        halves = self._halves[key].reshape(2, *stack.shape)
        numbers = stack.nbytes // 4
        self._split((-(-numbers // 256),), (256,), (stack, *halves, np.int64(numbers)))
        return halves

    def _multiply_halves(self, left: Any, right: Any, out: Any) -> None:
        """Compute the small products first; each later one is added to ``out``."""
        (a, b), (low_a, low_b) = (
            factors(self._problem, left[i], None if right is None else right[i]) for i in range(2)
        )
        self._gemm(low_a, b, out, self._small)
        self._gemm(a, low_b, out, self._small, self._one)
        # Of k without padding, as in `tolerances._split_bound`.
        chunk = split_chunk(self._problem.factor_shapes[0][1], self._dtype.itemsize // 4)
        for low in range(0, a.shape[-1], chunk):
            part = slice(low, low + chunk)
            self._gemm(a[..., part], b[..., part, :], out, self._one, self._one)

    def _gemm(self, left: Any, right: Any, out: Any, scale: Any = None, keep: Any = None) -> None:
        """One call of cuBLAS, which is column-major: it computes outᵀ = rightᵀ leftᵀ.

        The product is scaled by ``scale`` (1), and added to ``keep`` (0) times what ``out`` holds.
        """
        n, _, p = out.shape
        m = left.shape[-2]  # below lie the sums of columns, or padding
        item = left.dtype.itemsize
        conjugated = (factor.conjugated for factor in self._problem.operands)
        a, a_op, lda = _operand(left, next(conjugated))
        b, b_op, ldb = _operand(right, next(conjugated))
        stride_b = b.strides[0] // item if b.ndim == 3 else 0
        kind, out_kind = _TYPES[left.dtype.name], _TYPES[out.dtype.name]
        self._cublas.gemmStridedBatchedEx(
            self._handle, b_op, a_op, p, m, left.shape[-1],
            (self._one if scale is None else scale).ctypes.data, b.data.ptr, kind, ldb, stride_b,
            a.data.ptr, kind, lda, a.strides[0] // item,
            (self._zero if keep is None else keep).ctypes.data, out.data.ptr, out_kind, p,
            out.strides[0] // out.itemsize, n, self._compute_type, self._cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    def _rank_k(self, block: Any, out: Any) -> None:
        """Half of each symmetric or Hermitian product by a rank-k update, then its mirror image."""
        _, rows, columns = block.shape
        # Row-major A is column-major Aᵀ, a column-major lower triangle a row-major upper one.
        right = self._problem.operands[1]
        n, k = (rows, columns) if right.turned else (columns, rows)
        half, how = self._cublas.CUBLAS_FILL_MODE_LOWER, right.turned + right.conjugated
        one, zero = self._one.ctypes.data, self._zero.ctypes.data
        for a, c in zip(block, out, strict=True):
            self._update(
                self._handle, half, how, n, k, one, a.data.ptr, columns, zero, c.data.ptr, n
            )
        tiles = -(-n // 32)
        distance = np.int64(out.strides[0] // out.itemsize)
        self._mirror((tiles, tiles, len(out)), (32, 8), (out, np.int64(n), distance))


def _rank_k_update(xp: Any, routine: str) -> Callable[..., None]:
    """A routine of cuBLAS on the current stream; CuPy wraps none for Hermitian products."""
    # The library that CuPy has loaded, by its name.
    library = ctypes.CDLL(f"libcublas.so.{xp.cuda.runtime.runtimeGetVersion() // 1000}")
    call = getattr(library, f"cublas{routine.capitalize()}_v2")
    number, pointer = ctypes.c_int, ctypes.c_void_p
    matrix = (pointer, pointer, number)  # its scale, itself, its leading dimension
    call.argtypes = (pointer, number, number, number, number, *matrix, *matrix)

    def update(handle: int, *arguments: int) -> None:
        xp.cuda.cublas.setStream(handle, xp.cuda.get_current_stream().ptr)
        if status := call(handle, *arguments):
            raise xp.cuda.cublas.CUBLASError(status)

    return update


def _corner(stack: Any, like: Any) -> Any:
    return stack[..., : like.shape[-2], : like.shape[-1]]


def _operand(stack: Any, conjugated: bool) -> tuple[Any, int, int]:
    """A stack as stored, the operation that cuBLAS applies to it, and its leading dimension.

    The operation is none (0), transpose (1), or conjugate transpose (2).
    """
    item = stack.dtype.itemsize
    transposed = conjugated or (stack.strides[-1] != item and stack.shape[-1] > 1)
    stored = stack.swapaxes(-1, -2) if transposed else stack
    return stored, int(transposed) + conjugated, max(stored.strides[-2] // item, stored.shape[-1])


def check_precision(multiply: Callable[[], Any], factors: list[Any], compute: str) -> None:
    """Raise IntegrityError if products have a lower precision than ``compute``.

    A library may compute with fewer digits than requested: cuBLAS has switches that turn float32
    into tf32. In large matrices that error is below the tolerance of the proof. So before its first
    batch a device multiplies matrices with c = 1 + ε on the diagonal and 0 elsewhere. The product
    must have exactly c² there, rounded to its dtype. It has 1 if ε is lost, and 1 + ε if tf32x3
    loses one of its three products. (A gross error is not one of precision, as even bfloat16 has 8
    bits: the proof of the first batch finds it, and blames the device.)

    This waits for the device. ``multiply`` multiplies the current contents of the factors and
    returns the products ``(n, m, p)``. The factors are C-contiguous stacks, or one matrix for all;
    they are overwritten.
    """
    dtype = factors[0].dtype
    number = 1.0 + (2.0**-10 if compute == "tf32" else float(np.finfo(dtype).eps))
    for factor in factors:
        factor.fill(0)
        _diagonal(factor)[...] = number
    products = multiply()
    length = min(size for stack in [*factors, products] for size in stack.shape[-2:])
    expected = products.dtype.type(number**2).item()
    squares = _diagonal(products)[..., :length].copy().ravel()
    squares = squares.get() if hasattr(squares, "get") else squares
    wrong = (squares != expected) & (abs(squares - expected) < 2.0**-6)
    if not wrong.any():
        return
    square = squares[int(wrong.argmax())].item()
    raise IntegrityError(
        f"in a known product of {dtype} the device computed {number} squared as {square}, not "
        f"{expected}: lower precision than {compute}. Look for what changes the arithmetic of "
        "cuBLAS here (environment variables, another library), or ask for precision: tf32"
    )


def _diagonal(stack: Any) -> Any:
    """The diagonals of the matrices, as a view because memory may be short."""
    *matrices, rows, columns = stack.shape
    step = columns + 1
    return stack.reshape(*matrices, -1)[..., : (min(rows, columns) - 1) * step + 1 : step]
