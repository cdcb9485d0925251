"""Factors for tf32, and in NumPy what a GPU does with them: the split, and one call of cuBLAS."""

import ctypes
from types import SimpleNamespace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tests.factories import noise

FAST_TF32 = 77
TYPES = {0: np.float32, 4: np.complex64}
KINDS = ("normal", "uniform", "wide", "ill-conditioned")


def numbers(kind, shape, dtype="float32", seed=0):
    """Factors; products of ill-conditioned ones are far below the sums of their terms' moduli."""
    random = np.random.default_rng(seed)
    made = noise(shape, "complex128" if "complex" in dtype else "float64", seed)
    if kind == "uniform":
        made = random.random(shape)
    if kind == "wide":
        made = made * np.exp2(random.integers(-20, 21, shape))
    if kind == "ill-conditioned":
        side = shape[-1] // 2
        made = np.ones(shape) + 2.0**-12 * made
        made[..., :side] *= -1
    return made.astype(dtype)


def rounded(numbers):
    """float32 numbers rounded to 11 significant bits, ties to even; never to infinity."""
    bits = numbers.view(np.uint32)
    up = np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))
    near = np.where(bits & np.uint32(0x7FFFFFFF) < 0x7F7FF000, bits + up, bits)
    return (near & np.uint32(0xFFFFE000)).view(np.float32)


def halves(numbers):
    """float32 numbers as ``high + low / 2048``, as `gemm` splits them."""
    high = rounded(numbers)
    return high, rounded((numbers - high) * np.float32(2048))


class Array(np.ndarray):
    """An array with its address in ``data.ptr``, as in cupy."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


def made(call):
    """The same call, which returns an `Array`."""
    return lambda *words: call(*words).view(Array)


class Cupy:
    """The part of cupy that the kernel uses."""

    def __init__(self):
        self.empty, self.zeros, self.copyto = made(np.empty), made(np.zeros), np.copyto
        self.full, self.asarray, self.asnumpy = made(np.full), made(np.asarray), np.asarray
        self.RawModule = lambda code: SimpleNamespace(get_function=lambda name: self._split)
        names = {"CUBLAS_COMPUTE_32F": 68, "CUBLAS_COMPUTE_32F_FAST_TF32": FAST_TF32}
        cublas = SimpleNamespace(
            **names, CUBLAS_GEMM_DEFAULT=-1, setMathMode=lambda *_: None,
            gemmStridedBatchedEx=self._gemm,
        )  # fmt: skip
        device = SimpleNamespace(get_cublas_handle=lambda: 0)
        self.cuda = SimpleNamespace(cublas=cublas, device=device)

    def _split(self, grid, block, words):
        a, high, low, n = words
        assert grid[0] * block[0] >= n
        flat = np.ascontiguousarray(a).view(np.ndarray).reshape(-1).view(np.float32)
        assert len(flat) == n
        for part, half in zip((high, low), halves(flat), strict=True):
            part.view(np.ndarray).reshape(-1).view(np.float32)[:] = half

    def _gemm(
        self, handle, turn_b, turn_a, p, m, k, alpha, b, kind, ldb, step_b, a, _, lda, step_a,
        beta, c, kind_c, ldc, step_c, n, compute, algorithm,
    ):  # fmt: skip
        dtype = np.dtype(TYPES[kind])

        def stack(address, rows, columns, ld, step):
            nbytes = ((n - 1) * step + (rows - 1) * ld + columns) * dtype.itemsize
            flat = np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)
            strides = (step * dtype.itemsize, ld * dtype.itemsize, dtype.itemsize)
            return as_strided(flat, (n, rows, columns), strides)

        left = stack(a, k, m, lda, step_a).swapaxes(1, 2) if turn_a else stack(a, m, k, lda, step_a)
        right = (
            stack(b, p, k, ldb, step_b).swapaxes(1, 2) if turn_b else stack(b, k, p, ldb, step_b)
        )
        for factor in (left, right):
            bits = np.ascontiguousarray(factor).view(np.uint32)
            # What tf32 does to other numbers depends on the version of cuBLAS.
            assert compute != FAST_TF32 or not (bits & np.uint32(0x1FFF)).any()
        out = stack(c, m, p, ldc, step_c)
        scale, keep = (stack(address, 1, 1, 1, 0)[0, 0, 0] for address in (alpha, beta))
        out[...] = scale * np.matmul(left, right) + (keep * out if keep else 0)
