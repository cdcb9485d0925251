"""The loops that numba compiles: they add rows of products, and multiply stacks by vectors.

Elements are widened to float64 in registers, so no matrix is copied, and each is read once: when
rows are added, for all levels of the tree; when matrices are multiplied, for four vectors and the
moduli. Rows are added a tile of elements at a time: four rows in registers, whose sum waits in the
L1 cache until the other half of its node is there.
"""

import hashlib
import pickle
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types, uint64
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from shardwise.processes import threads

numba.config.DISABLE_JIT = 0  # in Python these loops take a hundred times as long, and do not wrap

_TILE = 512  # elements of a row: a float64 for each of them and each level fits the L1 cache
_LEVELS = 64
# A check may add in any order (tolerances.py), but must not assume that NaN and ∞ are absent.
_ANY_ORDER = {"reassoc", "contract"}


@intrinsic  # type: ignore[untyped-decorator]
def _wide(typing: Any, number: Any) -> Any:
    """Widen a float16 (given as the uint16 of its bits), a float32 or a float64 to float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        if number == types.float64:
            return value
        if number == types.uint16:
            value = builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
        return builder.fpext(value, ir.DoubleType())

    return types.float64(number), generate


def fold(rows: np.ndarray, out: np.ndarray) -> None:
    """Add rows in the order of the binary tree of tree.py.

    ``rows`` are ``(2**k, width)`` of float16, float32 or float64, contiguous; ``out`` is
    ``(width,)`` of float64.
    """
    words = _words(rows.reshape(-1))
    compiled(_fold, words.dtype.name)(words, len(rows), out)


def times(
    stack: np.ndarray, turned: bool, vectors: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Multiply matrices, or their transposes, by vectors, and their moduli by ``size``.

    The stack is ``(n, rows, columns)`` of float16, float32 or float64, copied unless contiguous;
    vectors and size are float64 ``(n, 4 g, length)`` and ``(n, length)``, or 1 in place of n.
    Returns products ``(n, 4 g, other length)``, and those of the moduli ``(n, other length)``.
    """
    words = _words(np.ascontiguousarray(stack))
    n, length = len(stack), stack.shape[2 if turned else 1]
    products, moduli = np.zeros((n, vectors.shape[1], length)), np.zeros((n, length))
    loop, step = (_columns, _TILE) if turned else (_rows, 2)
    call = partial(compiled(loop, words.dtype.name), words, np.ascontiguousarray(vectors), size)
    threads.split(n * -(-length // step), partial(call, products, moduli))
    return products, moduli


def _rows(
    words: np.ndarray, vectors: np.ndarray, size: np.ndarray,
    products: np.ndarray, moduli: np.ndarray, low: int, high: int,
) -> None:  # fmt: skip
    """Multiply the pairs of rows ``low`` to ``high``, counted over all matrices."""
    _, rows, columns = words.shape
    pairs = (rows + 1) // 2
    for pair in range(low, high):
        i, one = pair // pairs, 2 * (pair % pairs)
        other = min(one + 1, rows - 1)  # an odd last row is its own partner
        a, b = words[i, one], words[i, other]
        v, s = vectors[i if len(vectors) > 1 else 0], size[i if len(size) > 1 else 0]
        for g in range(0, v.shape[0], 4):
            v0, v1, v2, v3 = v[g], v[g + 1], v[g + 2], v[g + 3]
            a0 = a1 = a2 = a3 = sa = b0 = b1 = b2 = b3 = sb = 0.0
            for j in range(columns):
                x, y = _wide(a[j]), _wide(b[j])
                a0 += x * v0[j]
                a1 += x * v1[j]
                a2 += x * v2[j]
                a3 += x * v3[j]
                sa += abs(x) * s[j]
                b0 += y * v0[j]
                b1 += y * v1[j]
                b2 += y * v2[j]
                b3 += y * v3[j]
                sb += abs(y) * s[j]
            p = products[i, g : g + 4]
            p[0, one], p[1, one], p[2, one], p[3, one], moduli[i, one] = a0, a1, a2, a3, sa
            p[0, other], p[1, other], p[2, other], p[3, other] = b0, b1, b2, b3
            moduli[i, other] = sb


def _columns(
    words: np.ndarray, vectors: np.ndarray, size: np.ndarray,
    products: np.ndarray, moduli: np.ndarray, low: int, high: int,
) -> None:  # fmt: skip
    """Multiply the tiles of columns ``low`` to ``high``, counted over all matrices."""
    _, rows, columns = words.shape
    tiles = (columns + _TILE - 1) // _TILE
    for tile in range(low, high):
        i, first = tile // tiles, _TILE * (tile % tiles)
        last = min(first + _TILE, columns)
        m = moduli[i, first:last]
        v, s = vectors[i if len(vectors) > 1 else 0], size[i if len(size) > 1 else 0]
        for g in range(0, v.shape[0], 4):
            p0, p1 = products[i, g, first:last], products[i, g + 1, first:last]
            p2, p3 = products[i, g + 2, first:last], products[i, g + 3, first:last]
            for one in range(0, rows, 2):
                other = min(one + 1, rows - 1)
                a, b = words[i, one, first:last], words[i, other, first:last]
                a0, a1, a2, a3 = v[g, one], v[g + 1, one], v[g + 2, one], v[g + 3, one]
                b0, b1, b2, b3 = v[g, other], v[g + 1, other], v[g + 2, other], v[g + 3, other]
                sa, sb = s[one], s[other]
                if g:
                    sa = sb = 0.0
                if other == one:  # an odd last row, which must count once
                    b0 = b1 = b2 = b3 = sb = 0.0
                for j in range(last - first):
                    x, y = _wide(a[j]), _wide(b[j])
                    p0[j] += x * a0 + y * b0
                    p1[j] += x * a1 + y * b1
                    p2[j] += x * a2 + y * b2
                    p3[j] += x * a3 + y * b3
                    m[j] += abs(x) * sa + abs(y) * sb


def _words(array: np.ndarray) -> np.ndarray:
    """The same numbers as the loops take them: read-only, and float16 as the uint16 of its bits."""
    if array.dtype == np.float16:
        triple, _, features = cpu_target.target_context.codegen().magic_tuple()
        # Without an instruction that widens them, a compiled loop would end the process.
        widens = "+f16c" in features or triple.startswith("aarch64")
        array = array.view(np.uint16) if widens else array.astype(np.float32)
    words = array.view()
    words.flags.writeable = False
    return words


@cache
def compiled(function: Any, name: str) -> Any:
    """A loop for words of this type: compiled, or loaded as an earlier process cached it.

    numba keeps all variants of a function under one index. It replaces the index without a lock,
    and before the code, so with several processes the index may name the code of another type,
    processor or source. So each of these has a function of its own name, and an index of its own.
    """
    numbers = [types.Array(types.float64, axes, "C") for axes in range(4)]
    if function is _fold:
        axes, others, fastmath = 1, [types.int64, numbers[1]], set[str]()
    else:
        axes, others, fastmath = 3, [*numbers[3:1:-1] * 2, types.int64, types.int64], _ANY_ORDER
    signature = types.Array(getattr(types, name), axes, "C", readonly=True), *others
    cpu = llvmlite.binding.get_host_cpu_name() + llvmlite.binding.get_host_cpu_features().flatten()
    variant = Path(__file__).read_bytes() + f"{cpu} {numba.__version__}".encode()
    own = FunctionType(function.__code__, globals())
    own.__qualname__ = f"{function.__name__}_{name}_{hashlib.sha256(variant).hexdigest()[:16]}"
    try:
        loop: Any = numba.njit(nogil=True, fastmath=fastmath, cache=True)(own)
        loop.compile(signature)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
        # No folder is writable, the disk is full, or a crash cut a file short: no end of a run.
        loop = numba.njit(nogil=True, fastmath=fastmath)(own)
        loop.compile(signature)
    return loop


def _fold(words: np.ndarray, rows: int, out: np.ndarray) -> None:
    stride, waiting, level = uint64(len(out)), np.empty((_LEVELS, _TILE)), 0
    step = 4 if rows >= 4 else 1
    for low in range(0, len(out), _TILE):
        tile = uint64(min(_TILE, len(out) - low))
        now = np.empty(tile)
        for group in range(rows // step):
            first = uint64(step * group) * stride + uint64(low)
            if step == 1:
                for i in range(tile):
                    now[i] = _wide(words[first + i])
            else:  # a separate loop, so that LLVM vectorizes it
                for i in range(tile):
                    at = first + i
                    left = _wide(words[at]) + _wide(words[at + stride])
                    at += stride + stride
                    now[i] = left + (_wide(words[at]) + _wide(words[at + stride]))
            level, halves = 0, group
            while halves & 1:
                for i in range(tile):
                    now[i] = waiting[level, i] + now[i]
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
