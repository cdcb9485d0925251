"""The loop that adds rows of products on the CPU, compiled by numba.

Eight rows are added in registers, a tile of elements at a time, and what they come to waits in the
nearest cache until its other half is there: rows are read once, whatever the number of levels.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import types, uint64

from shardwise.numerics import compiled
from shardwise.numerics.compiled import wide

_TILE = 512  # elements; with a float64 a level for each they stay in a core's first cache
_LEVELS = 64


def fold(rows: np.ndarray, out: np.ndarray) -> None:
    """Add ``2**k`` rows as the tree of `tree` does.

    Parameters
    ----------
    rows
        ``(2**k, width)`` of float16, float32 or float64, contiguous.
    out
        ``(width,)`` of float64.
    """
    words = rows.reshape(-1).view(np.uint16 if rows.dtype == np.float16 else rows.dtype)
    words.flags.writeable = False
    _loop(words.dtype.name)(words, len(rows), out)


@cache
def _loop(name: str) -> Any:
    words = types.Array(getattr(types, name), 1, "C", readonly=True)
    out = types.Array(types.float64, 1, "C")
    return compiled.loop(_fold, words, types.int64, out)


@compiled.part
def _pair(words: np.ndarray, at: int, stride: int) -> Any:
    return wide(words[at]) + wide(words[at + stride])


@compiled.part
def _four(words: np.ndarray, at: int, stride: int) -> Any:
    return _pair(words, at, stride) + _pair(words, at + uint64(2) * stride, stride)


@compiled.part
def _group(words: np.ndarray, first: int, stride: int, rows: int, out: np.ndarray) -> None:
    """Add 8, 4, 2 rows or 1; LLVM vectorizes a loop only where their number is not asked in it."""
    width = uint64(len(out))
    if rows == 8:
        for i in range(width):
            left = _four(words, first + i, stride)
            out[i] = left + _four(words, first + i + uint64(4) * stride, stride)
    elif rows == 4:
        for i in range(width):
            out[i] = _four(words, first + i, stride)
    elif rows == 2:
        for i in range(width):
            out[i] = _pair(words, first + i, stride)
    else:
        for i in range(width):
            out[i] = wide(words[first + i])


def _fold(words: np.ndarray, rows: int, out: np.ndarray) -> None:
    step, apart = min(rows, 8), uint64(len(out))
    waiting = np.empty((_LEVELS, _TILE))
    for low in range(0, len(out), _TILE):
        tile = uint64(min(_TILE, len(out) - low))
        now = np.empty(tile)
        for group in range(rows // step):
            _group(words, uint64(group * step) * apart + uint64(low), apart, step, now)
            level, halves = 0, group
            while halves & 1:
                for i in range(tile):
                    now[i] = waiting[level, i] + now[i]
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
