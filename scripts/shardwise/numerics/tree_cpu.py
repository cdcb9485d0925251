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
        ``(2**k, width)`` of float16, float32 or float64; each is contiguous.
    out
        ``(width,)`` of float64.
    """
    n, width = rows.shape
    stride = rows.strides[0] // rows.itemsize if n > 1 else width
    span = np.lib.stride_tricks.as_strided(rows, ((n - 1) * stride + width,), (rows.itemsize,))
    words = span.view(np.uint16 if rows.dtype == np.float16 else rows.dtype)
    words.flags.writeable = False
    _loop(words.dtype.name)(words, n, stride, out)


@cache
def _loop(name: str) -> Any:
    words = types.Array(getattr(types, name), 1, "C", readonly=True)
    out = types.Array(types.float64, 1, "C")
    return compiled.loop(_fold, words, types.int64, types.int64, out)


@compiled.part
def _pair(words: np.ndarray, at: int, stride: int) -> Any:
    return wide(words[at]) + wide(words[at + stride])


@compiled.part
def _four(words: np.ndarray, at: int, stride: int) -> Any:
    return _pair(words, at, stride) + _pair(words, at + uint64(2) * stride, stride)


def _fold(words: np.ndarray, rows: int, stride: int, out: np.ndarray) -> None:
    width, step, apart = len(out), min(rows, 8), uint64(stride)
    waiting = np.empty((_LEVELS, _TILE))
    now = np.empty(_TILE)
    for low in range(0, width, _TILE):
        tile = uint64(min(_TILE, width - low))
        for group in range(rows // step):
            first = uint64(group * step) * apart + uint64(low)
            for i in range(tile):
                at = first + i
                if step == 8:
                    left = _four(words, at, apart)
                    now[i] = left + _four(words, at + uint64(4) * apart, apart)
                elif step == 4:
                    now[i] = _four(words, at, apart)
                elif step == 2:
                    now[i] = _pair(words, at, apart)
                else:
                    now[i] = wide(words[at])
            level, halves = 0, group
            while halves & 1:
                for i in range(tile):
                    now[i] = waiting[level, i] + now[i]
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
