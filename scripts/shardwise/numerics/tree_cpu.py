"""The loop that adds rows of products on the CPU, compiled by numba.

Eight rows are added in registers, a tile of elements at a time, and what they come to waits in the
nearest cache until its other half is there: rows are read once, whatever the number of levels.
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint64

from shardwise.numerics import compiled

_TILE = 512  # elements; with a float64 a level for each they stay in a core's first cache
_LEVELS = 64


def fold(rows: np.ndarray, out: np.ndarray, overflow: np.ndarray) -> None:
    """Add ``2**k`` rows as the tree of `tree` does.

    Parameters
    ----------
    rows
        ``(2**k, width)`` of float16, float32, float64 or int64; each is contiguous.
    out
        ``(width,)`` of float64 or int64.
    overflow
        int32 ``(1,)``, set to 1 where a sum of integers does not fit.
    """
    n, width = rows.shape
    stride = rows.strides[0] // rows.itemsize if n > 1 else width
    span = np.lib.stride_tricks.as_strided(rows, ((n - 1) * stride + width,), (rows.itemsize,))
    words = span.view(np.uint16 if rows.dtype == np.float16 else rows.dtype)
    words.flags.writeable = False
    if _loop(words.dtype.name)(words, n, stride, out) < 0:
        overflow[0] = 1


@cache
def _loop(name: str) -> Any:
    words = types.Array(getattr(types, name), 1, "C", readonly=True)
    loop, wide = (_fold_integers, types.int64) if name == "int64" else (_fold_reals, types.float64)
    return compiled.loop(loop, words, types.int64, types.int64, types.Array(wide, 1, "C"))


@compiled.instructions
def _wide(typing: Any, number: Any) -> Any:
    """A float16, as the uint16 of its bits, a float32 or a float64 as float64.

    The exponent of a float16 is moved to its place by a multiplication, which is exact and part of
    any processor.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,), single, double, word = arguments, ir.FloatType(), ir.DoubleType(), ir.IntType(32)
        if number == types.float64:
            return value
        if number == types.float32:
            return builder.fpext(value, double)
        bits = builder.zext(value, word)
        sign = builder.shl(builder.and_(bits, word(0x8000)), word(16))
        modulus = builder.shl(builder.and_(bits, word(0x7FFF)), word(13))
        small = builder.bitcast(builder.or_(sign, modulus), single)
        wild = builder.icmp_unsigned(">=", modulus, word(0x7C00 << 13))  # infinite or NaN
        kept = builder.bitcast(builder.or_(builder.or_(sign, modulus), word(0x7F800000)), single)
        finite = builder.fmul(builder.fpext(small, double), double(2.0**112))
        return builder.select(wild, builder.fpext(kept, double), finite)

    return types.float64(number), generate


@compiled.part
def _pair(words: np.ndarray, at: int, stride: int) -> Any:
    return _wide(words[at]) + _wide(words[at + stride])


@compiled.part
def _four(words: np.ndarray, at: int, stride: int) -> Any:
    return _pair(words, at, stride) + _pair(words, at + uint64(2) * stride, stride)


def _fold_reals(words: np.ndarray, rows: int, stride: int, out: np.ndarray) -> int:
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
                    now[i] = _wide(words[at])
            level, halves = 0, group
            while halves & 1:
                for i in range(tile):
                    now[i] = waiting[level, i] + now[i]
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
    return 0


def _fold_integers(words: np.ndarray, rows: int, stride: int, out: np.ndarray) -> int:
    """The same for int64; below 0 where a sum does not fit."""
    width, misfit = len(out), 0
    waiting = np.empty((_LEVELS, _TILE), np.int64)
    now = np.empty(_TILE, np.int64)
    for low in range(0, width, _TILE):
        tile = uint64(min(_TILE, width - low))
        for row in range(rows):
            for i in range(tile):
                now[i] = words[uint64(row) * uint64(stride) + uint64(low) + i]
            level, halves = 0, row
            while halves & 1:
                for i in range(tile):
                    total = waiting[level, i] + now[i]
                    misfit |= (waiting[level, i] ^ total) & (now[i] ^ total)
                    now[i] = total
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
    return misfit
