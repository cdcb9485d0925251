"""The loop that adds rows of products on the CPU, compiled by numba.

Four rows are added in registers, a tile of elements at a time, and what they come to waits in the
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
    """Add rows as the tree of `tree` does.

    ``rows`` are ``(2**k, width)`` of float16, float32 or float64, contiguous; ``out`` is
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
                    now[i] = wide(words[first + i])
            else:  # a loop of its own, which LLVM vectorizes
                for i in range(tile):
                    at = first + i
                    left = wide(words[at]) + wide(words[at + stride])
                    at += stride + stride
                    now[i] = left + (wide(words[at]) + wide(words[at + stride]))
            level, halves = 0, group
            while halves & 1:
                for i in range(tile):
                    now[i] = waiting[level, i] + now[i]
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
