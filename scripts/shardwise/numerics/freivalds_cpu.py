"""The loops of Freivalds' check on the CPU, compiled by numba: stacks times a few vectors.

Elements are widened to float64 in registers, so no copy of a matrix is made, and each is read once
for four vectors and the moduli.
"""

from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from shardwise.numerics import compiled
from shardwise.numerics.compiled import wide
from shardwise.processes import threads

_TILE = 512  # columns; their sums stay in a core's first cache
# Sums may be taken in any order (tolerances.py), but NaN and infinities count.
_ANY_ORDER = {"reassoc", "contract"}


def prepare(dtype: np.dtype) -> None:
    """Compile the loops for stacks of float16, float32 or float64."""
    name = "uint16" if dtype == np.float16 else dtype.name
    _loop(_rows, name), _loop(_columns, name)


def times(
    stack: np.ndarray, transposed: bool, vectors: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Products of matrices, or their transposes, with vectors, and of their moduli with ``size``.

    The stack is ``(n, rows, columns)`` of float16, float32 or float64, copied unless contiguous;
    vectors and size are float64 ``(n, 4 g, length)`` and ``(n, length)``, or one of each for all.
    The products are ``(n, 4 g, other length)``, those of the moduli ``(n, other length)``.
    """
    stack = np.ascontiguousarray(stack)
    words = stack.view(np.uint16 if stack.dtype == np.float16 else stack.dtype)
    words.flags.writeable = False
    n, length = len(stack), stack.shape[2 if transposed else 1]
    products, moduli = np.zeros((n, vectors.shape[1], length)), np.zeros((n, length))
    loop = _loop(_columns if transposed else _rows, words.dtype.name)
    step = _TILE if transposed else 2
    threads.split(
        n * -(-length // step),
        partial(loop, words, np.ascontiguousarray(vectors), size, products, moduli),
    )
    return products, moduli


@cache
def _loop(function: Any, name: str) -> Any:
    words = types.Array(getattr(types, name), 3, "C", readonly=True)
    cube, table = types.Array(types.float64, 3, "C"), types.Array(types.float64, 2, "C")
    signature = words, cube, table, cube, table, types.int64, types.int64
    return compiled.loop(function, *signature, fastmath=_ANY_ORDER)


def _rows(
    words: np.ndarray, vectors: np.ndarray, size: np.ndarray,
    products: np.ndarray, moduli: np.ndarray, low: int, high: int,
) -> None:  # fmt: skip
    """The pairs of rows ``low`` to ``high`` of all matrices."""
    _, rows, columns = words.shape
    pairs = (rows + 1) // 2
    for pair in range(low, high):
        i, one = pair // pairs, 2 * (pair % pairs)
        other = min(one + 1, rows - 1)  # a last row that is alone is taken twice
        a, b = words[i, one], words[i, other]
        v, s = vectors[i if len(vectors) > 1 else 0], size[i if len(size) > 1 else 0]
        for g in range(0, v.shape[0], 4):
            v0, v1, v2, v3 = v[g], v[g + 1], v[g + 2], v[g + 3]
            a0 = a1 = a2 = a3 = sa = b0 = b1 = b2 = b3 = sb = 0.0
            for j in range(columns):
                x, y = wide(a[j]), wide(b[j])
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
    """The tiles of columns ``low`` to ``high`` of all matrices."""
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
                if other == one:  # a last row that is alone
                    b0 = b1 = b2 = b3 = sb = 0.0
                for j in range(last - first):
                    x, y = wide(a[j]), wide(b[j])
                    p0[j] += x * a0 + y * b0
                    p1[j] += x * a1 + y * b1
                    p2[j] += x * a2 + y * b2
                    p3[j] += x * a3 + y * b3
                    m[j] += abs(x) * sa + abs(y) * sb
