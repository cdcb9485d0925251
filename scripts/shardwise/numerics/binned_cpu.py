"""The loops of binned sums on the CPU, compiled by numba; docs/sums.md has the method.

Numbers come as the unsigned integers of the same bits, so that one source serves all dtypes. A
visit adds 8 rows to a tile of elements: few enough that rows and state stay in a core's nearest
caches, and enough that the state is loaded and stored once for many terms.

Before a visit the rows are looked at: the largest modulus tells whether a top has to grow, and the
smallest that is not 0 whether the lowest level gets something. Where it gets nothing, the level
above takes all that is left of each number: those are added as they are, without rounding.

Indices are unsigned and arrays come whole, because numba's check for negative indices, and inner
strides that are not known before the run, keep LLVM from vector code.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint64

from shardwise.numerics import compiled
from shardwise.numerics.packed import Packing
from shardwise.numerics.rows import Rows
from shardwise.plan.problem import LEVELS

_TILE = 1024  # elements of a visit
_BLOCK = 64  # rows that pass one tile before it is the next tile's turn
# The length of a tuple is known when it is compiled: rows of a visit, and a choice.
_EIGHT, _ONE = (0,) * 8, (0,)
_EXACT, _ROUNDED = (0,), ()

_EXPONENT = 1 << 52  # one more in the exponent of a float64, as the integer of its bits
_LEVEL = 32 * _EXPONENT
_MODULUS = (1 << 63) - 1
_LEVEL_BITS, _NAN, _PLUS, _MINUS = 0xFF, 0x100, 0x200, 0x400
_LOW = 0xFFFFFFFF

_DIGITS = {"float16": 11, "float32": 24, "float64": 53}
# Moduli from here on count as infinite, 2⁹⁶⁰ and more in float64; and infinity itself.
_WILD = {"float16": 0x7C00, "float32": 0x7F800000, "float64": (1023 + 960) * _EXPONENT}
_INFINITE = {**_WILD, "float64": 2047 * _EXPONENT}

_Zeros = tuple[int, ...]  # its length says how many rows, or levels
_Place = tuple[int, int]  # of the first row in the words, and the distance of rows
_Tile = tuple[int, int]  # first element, and how many


def add_reals(rows: Rows, heads: np.ndarray, sums: np.ndarray) -> None:
    """Add rows of float16, float32 or float64.

    Parameters
    ----------
    heads
        int16 ``(elements,)``, tops and flags; at least ``rows.width`` of them.
    sums
        int64 ``(L, elements)``, the levels from the top down.
    """
    name, levels = rows.flat.dtype.name, len(sums)
    word = np.dtype(f"u{rows.flat.itemsize}")
    # A modulus of 2^(digits - 1) units of a level, or more, gives no slice below that level.
    thin = (_DIGITS[name] - 1 - 1074 + 1023) * _EXPONENT - (levels - 2) * _LEVEL
    limits = word.type(_WILD[name]), word.type(_INFINITE[name]), thin
    most = (0,) * (levels - 1), (0,) * levels
    _reals(name)(*_plain(rows, word), limits, *most, heads, sums)


def add_integers(rows: Rows, sums: np.ndarray) -> None:
    """Add rows of int64 to the sums of the halves, int64 ``(2, elements)``."""
    _integers()(*_plain(rows, rows.flat.dtype), sums)


def merge_reals(planes: np.ndarray, heads: np.ndarray, sums: np.ndarray) -> None:
    """Add the planes ``(1 + L, numbers)`` of another sum; heads and sums as for `add_reals`."""
    planes = np.ascontiguousarray(planes).view()
    planes.flags.writeable = False
    _merging()(planes, heads, sums)


def merge_packed(
    flat: np.ndarray, starts: np.ndarray, width: int, packing: Packing,
    heads: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Add the planes of sums with one packing.

    Their rows of ``width`` words begin at ``starts``, int64 ``(sums, rows)``, of a buffer of
    uint16.
    """
    words = flat.view()
    words.flags.writeable = False
    ends = np.cumsum(packing.words)
    _unpacking()(words, starts, width, ends, packing.first, heads, sums)


def round_reals(planes: np.ndarray, out: np.ndarray) -> None:
    """Round the sums of planes ``(1 + L, numbers)`` to the nearest float64, ties to even."""
    planes = np.ascontiguousarray(planes)
    planes.flags.writeable = False
    _rounding()(planes, out)


def _plain(rows: Rows, dtype: np.dtype) -> tuple[Any, ...]:
    """Rows as the loops take them: always read-only, so that each is compiled for one type."""
    words = rows.flat.view(dtype)
    words.flags.writeable = False
    return words, rows.start, rows.stride, rows.n, rows.width


def _array(item: Any, dimensions: int, readonly: bool = False) -> Any:
    return types.Array(item, dimensions, "C", readonly=readonly)


@cache
def _reals(name: str) -> Callable[..., None]:
    word, count = types.Integer.from_bitwidth(8 * np.dtype(name).itemsize, False), types.int64
    levels = LEVELS[name]
    depths = types.UniTuple(count, levels - 1), types.UniTuple(count, levels)
    state = _array(types.int16, 1), _array(types.int64, 2)
    words = _array(word, 1, readonly=True)
    limits = types.Tuple((word, word, count))
    return compiled.loop(_add_reals, words, *[count] * 4, limits, *depths, *state)


@cache
def _integers() -> Callable[..., None]:
    words, sums = _array(types.int64, 1, readonly=True), _array(types.int64, 2)
    return compiled.loop(_add_integers, words, *[types.int64] * 4, sums)


@cache
def _merging() -> Callable[..., None]:
    planes = _array(types.int64, 2, readonly=True)
    return compiled.loop(_merge_reals, planes, _array(types.int16, 1), _array(types.int64, 2))


@cache
def _unpacking() -> Callable[..., None]:
    words, count = _array(types.uint16, 1, readonly=True), types.int64
    starts, ends = _array(count, 2), _array(count, 1)
    state = _array(types.int16, 1), _array(types.int64, 2)
    return compiled.loop(_merge_packed, words, starts, count, ends, count, *state)


@cache
def _rounding() -> Callable[..., None]:
    planes = _array(types.int64, 2, readonly=True)
    return compiled.loop(_round_reals, planes, _array(types.float64, 1))


@compiled.instructions
def _bits(typing: Any, number: Any) -> Any:
    """The bits of a float64 as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@compiled.instructions
def _number(typing: Any, bits: Any) -> Any:
    """The number whose bits an integer of 16, 32 or 64 bits holds, as float64.

    Infinities and NaN of 16 bits become numbers of 65,536 and more: the exponent is moved to its
    place by a multiplication, which is exact and part of any processor.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single, double, word = ir.FloatType(), ir.DoubleType(), ir.IntType(32)
        if bits.bitwidth == 64:
            return builder.bitcast(arguments[0], double)
        if bits.bitwidth == 32:
            return builder.fpext(builder.bitcast(arguments[0], single), double)
        half = builder.zext(arguments[0], word)
        sign = builder.shl(builder.and_(half, word(0x8000)), word(16))
        modulus = builder.shl(builder.and_(half, word(0x7FFF)), word(13))
        small = builder.bitcast(builder.or_(sign, modulus), single)
        return builder.fmul(builder.fpext(small, double), double(2.0**112))

    return types.float64(bits), generate


@compiled.part
def _look(
    words: np.ndarray, place: _Place, rows: _Zeros, tile: _Tile,
    heads: np.ndarray, extremes: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """Look at as many rows as ``rows`` is long, before they are added.

    It returns the bits of the largest modulus; more than 0 where a modulus is too large for its
    top; and how far the smallest that is not 0 lies below a top, as the bits of a float64.
    """
    word = words.dtype.type
    start, stride = place
    # By itself, as numbers of few bits are then looked at many at a time.
    for i in range(uint64(tile[1])):
        most, least = word(0), word(~uint64(0))
        for row in range(len(rows)):
            bits = words[uint64(start) + uint64(row) * uint64(stride) + i]
            modulus = word(bits & (word(~uint64(0)) >> uint64(1)))
            most = word(max(most, modulus))
            least = word(min(least, word(modulus - word(1))))  # 0 turns into the largest
        extremes[0, i], extremes[1, i] = most, least
    largest, excess, loss = word(0), -_MODULUS, -_MODULUS
    for i in range(uint64(tile[1])):
        top = (np.int64(heads[uint64(tile[0]) + i]) & _LEVEL_BITS) * _LEVEL
        most, least = extremes[0, i], extremes[1, i]
        largest = word(max(largest, most))
        excess = max(excess, _bits(_number(most)) - top)
        loss = max(loss, top - (_bits(_number(least)) & _MODULUS))
    return largest, excess + 20 * _EXPONENT, loss


@compiled.part
def _visit(
    words: np.ndarray, place: _Place, rows: _Zeros, levels: _Zeros, exact: _Zeros, tile: _Tile,
    heads: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Add as many rows as ``rows`` is long to as many levels.

    Where ``exact`` is not empty, the last of these levels takes all that is left of each number.
    """
    start, stride = place
    last = uint64(len(levels) - 1)
    for i in range(uint64(tile[1])):
        e = uint64(tile[0]) + i
        magic0 = (np.int64(heads[e]) & _LEVEL_BITS) * _LEVEL + 3 * (_EXPONENT // 2)
        magic1, magic2 = magic0 - _LEVEL, magic0 - 2 * _LEVEL
        magic = magic0 - np.int64(last) * _LEVEL
        # Slices are differences of bits: those of M are taken away for all rows at once.
        sum0 = sums[0, e] - len(rows) * magic0
        if len(levels) > 2:
            sum1 = sums[1, e] - len(rows) * magic1
        if len(levels) > 3:
            sum2 = sums[2, e] - len(rows) * magic2
        rests, ends = 0.0, sums[last, e] - (1 if len(exact) else len(rows)) * magic
        for row in range(len(rows)):
            number = _number(words[uint64(start) + uint64(row) * uint64(stride) + i])
            shifted = number + _number(uint64(magic0))
            sum0 += _bits(shifted)
            rest = number - (shifted - _number(uint64(magic0)))
            if len(levels) > 2:
                shifted = rest + _number(uint64(magic1))
                sum1 += _bits(shifted)
                rest -= shifted - _number(uint64(magic1))
            if len(levels) > 3:
                shifted = rest + _number(uint64(magic2))
                sum2 += _bits(shifted)
                rest -= shifted - _number(uint64(magic2))
            if len(exact):
                rests += rest  # without rounding: whole units of the level, fewer than 2⁵¹
            else:
                ends += _bits(rest + _number(uint64(magic)))
        sums[0, e] = sum0
        if len(levels) > 2:
            sums[1, e] = sum1
        if len(levels) > 3:
            sums[2, e] = sum2
        if len(exact):
            ends += _bits(rests + _number(uint64(magic)))
        sums[last, e] = ends


@compiled.part
def _tame(
    words: np.ndarray, place: _Place, n: int, wild: int, infinite: int, tile: _Tile,
    heads: np.ndarray, copy: np.ndarray,
) -> None:  # fmt: skip
    """Copy the rows of a tile; what counts as infinite flags its element and becomes 0."""
    start, stride = place
    largest = words.dtype.type(~uint64(0)) >> uint64(1)
    for row in range(n):
        for i in range(tile[1]):
            bits = words[start + row * stride + i]
            if bits & largest >= wild:
                flag = _MINUS if bits > largest else _PLUS
                heads[tile[0] + i] |= _NAN if bits & largest > infinite else flag
                bits = words.dtype.type(0)
            copy[row * _TILE + i] = bits


@compiled.part
def _grow(most: np.ndarray, tile: _Tile, heads: np.ndarray, sums: np.ndarray) -> None:
    """Raise tops to what the largest moduli of a tile need, none of them infinite."""
    for i in range(uint64(tile[1])):
        # The bits of a modulus grow with it, by 2⁵² at each power of two: a division, up.
        top = (_bits(_number(most[i])) + 20 * _EXPONENT + _LEVEL - 1) // _LEVEL
        e = uint64(tile[0]) + i
        by = top - (np.int64(heads[e]) & _LEVEL_BITS)
        if by > 0:
            for level in range(len(sums) - 1, -1, -1):
                sums[level, e] = sums[level - by, e] if level >= by else 0
            heads[e] += by


@compiled.part
def _add_batch(
    words: np.ndarray, place: _Place, n: int, limits: tuple[int, int, int],
    shallow: _Zeros, deep: _Zeros, tile: _Tile, heads: np.ndarray, sums: np.ndarray,
    extremes: np.ndarray, copy: np.ndarray,
) -> None:  # fmt: skip
    """Add 8 rows or one, to all levels if the lowest gets something."""
    wild, infinite, thin = limits
    while True:
        if n == 8:
            largest, excess, loss = _look(words, place, _EIGHT, tile, heads, extremes)
        else:
            largest, excess, loss = _look(words, place, _ONE, tile, heads, extremes)
        if largest < wild and excess <= 0:
            break
        if largest >= wild:
            _tame(words, place, n, wild, infinite, tile, heads, copy)
            words, place = copy, (0, _TILE)
        else:
            _grow(extremes[0], tile, heads, sums)
    if loss + thin <= 0:
        if n == 8:
            _visit(words, place, _EIGHT, shallow, _EXACT, tile, heads, sums)
        else:
            _visit(words, place, _ONE, shallow, _EXACT, tile, heads, sums)
    elif n == 8:
        _visit(words, place, _EIGHT, deep, _ROUNDED, tile, heads, sums)
    else:
        _visit(words, place, _ONE, deep, _ROUNDED, tile, heads, sums)


def _add_reals(
    words: np.ndarray, start: int, stride: int, n: int, width: int, limits: tuple[int, int, int],
    shallow: _Zeros, deep: _Zeros, heads: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Add ``n`` rows, tile by tile."""
    extremes = np.empty((2, _TILE), words.dtype)
    copy = np.empty(8 * _TILE, words.dtype)
    for first in range(0, n, _BLOCK):
        end = min(first + _BLOCK, n)
        for low in range(0, width, _TILE):
            tile = low, min(_TILE, width - low)
            row = first
            while row < end:
                rows = 8 if row + 8 <= end else 1
                place = start + row * stride + low, stride
                _add_batch(
                    words, place, rows, limits, shallow, deep, tile, heads, sums, extremes, copy
                )
                row += rows


@compiled.part
def _visit_integers(
    words: np.ndarray, place: _Place, rows: _Zeros, tile: _Tile, sums: np.ndarray
) -> None:
    """Add as many rows as ``rows`` is long to the sums of the halves."""
    start, stride = place
    for i in range(uint64(tile[1])):
        e = uint64(tile[0]) + i
        high, low = sums[0, e], sums[1, e]
        for row in range(len(rows)):
            number = words[uint64(start) + uint64(row) * uint64(stride) + i]
            high += number >> 32
            low += number & _LOW
        sums[0, e], sums[1, e] = high, low


def _add_integers(
    words: np.ndarray, start: int, stride: int, n: int, width: int, sums: np.ndarray
) -> None:
    for first in range(0, n, _BLOCK):
        end = min(first + _BLOCK, n)
        for low in range(0, width, _TILE):
            tile = low, min(_TILE, width - low)
            row = first
            while row < end:
                place = start + row * stride + low, stride
                if row + 8 <= end:
                    _visit_integers(words, place, _EIGHT, tile, sums)
                    row += 8
                else:
                    _visit_integers(words, place, _ONE, tile, sums)
                    row += 1


@compiled.part
def _merge_heads(others: np.ndarray, tile: _Tile, heads: np.ndarray) -> bool:
    """Take the flags of other heads to those of a tile, and say whether a top differs."""
    differ = np.int16(0)
    for i in range(uint64(tile[1])):
        e = uint64(tile[0]) + i
        # As int16 again: else numba makes int64 of it, and vectors hold a fourth.
        differ = np.int16(differ | np.int16(others[i] ^ heads[e]))
        heads[e] = np.int16(heads[e] | np.int16(others[i] & ~_LEVEL_BITS))
    return bool(differ & _LEVEL_BITS)


@compiled.part
def _merge_apart(
    top: int, planes: np.ndarray, at: int, e: int, heads: np.ndarray, sums: np.ndarray
) -> None:
    """Add the levels of one element, where the tops may differ: both are seen from the higher."""
    by = int(top & _LEVEL_BITS) - int(heads[e] & _LEVEL_BITS)
    up, down = max(by, 0), max(-by, 0)
    for level in range(len(sums) - 1, -1, -1):
        before = sums[level - up, e] if level >= up else 0
        more = planes[1 + level - down, at] if level >= down else 0
        sums[level, e] = before + more
    heads[e] += up


def _merge_reals(planes: np.ndarray, heads: np.ndarray, sums: np.ndarray) -> None:
    """Add planes; tile by tile in vectors, where no top differs."""
    others = np.empty(_TILE, np.int16)
    for low in range(0, planes.shape[1], _TILE):
        tile = low, min(_TILE, planes.shape[1] - low)
        for i in range(uint64(tile[1])):
            others[i] = planes[0, uint64(low) + i]
        if _merge_heads(others, tile, heads):
            for e in range(low, low + tile[1]):
                _merge_apart(others[e - low], planes, e, e, heads, sums)
            continue
        for level in range(len(sums)):
            for i in range(uint64(tile[1])):
                sums[level, uint64(low) + i] += planes[1 + level, uint64(low) + i]


@compiled.part
def _add_words(
    words: np.ndarray, starts: np.ndarray, rows: _Zeros, tile: _Tile, target: np.ndarray, at: int
) -> None:
    """Add one plane of several sums, of as many words as ``rows`` is long, from ``at`` on."""
    last = len(rows) - 1
    for number in range(len(starts)):
        low = uint64(starts[number, 0] + tile[0])
        second = uint64(starts[number, min(1, last)] + tile[0])
        third = uint64(starts[number, min(2, last)] + tile[0])
        high = uint64(starts[number, last] + tile[0])
        for i in range(uint64(tile[1])):
            total = np.int64(np.int16(words[high + i])) << (16 * last)
            if len(rows) > 1:
                total += np.int64(words[low + i])
            if len(rows) > 2:
                total += np.int64(words[second + i]) << 16
            if len(rows) > 3:
                total += np.int64(words[third + i]) << 32
            target[uint64(at) + i] += total


def _merge_packed(
    words: np.ndarray, starts: np.ndarray, width: int, ends: np.ndarray, first: int,
    heads: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Add packed sums; each plane has the rows from the end of the one before to its own.

    A tile takes all sums at once, so that the state stays in a core's nearest cache; where plane 0
    has words, tops differ within a sum, and each is added by itself.
    """
    others, planes = np.full(_TILE, first, np.int16), np.empty((len(ends), _TILE), np.int64)
    together = 1 if ends[0] else len(starts)
    for low in range(0, width, _TILE):
        tile = low, min(_TILE, width - low)
        for number in range(0, len(starts), together):
            if ends[0]:
                for i in range(uint64(tile[1])):
                    others[i] = words[uint64(starts[number, 0] + low) + i]
            apart = _merge_heads(others, tile, heads)
            if apart:
                planes[:] = 0
            for level in range(len(sums)):
                target, at = (planes[1 + level], 0) if apart else (sums[level], low)
                own = starts[number : number + together, ends[level] : ends[level + 1]]
                count = ends[level + 1] - ends[level]
                if count == 1:
                    _add_words(words, own, _ONE, tile, target, at)
                elif count == 2:
                    _add_words(words, own, (0, 0), tile, target, at)
                elif count == 3:
                    _add_words(words, own, (0, 0, 0), tile, target, at)
                elif count == 4:
                    _add_words(words, own, (0, 0, 0, 0), tile, target, at)
            if apart:
                for i in range(tile[1]):
                    _merge_apart(others[i], planes, i, low + i, heads, sums)


@compiled.part
def _spread(planes: np.ndarray, e: int, sign: int, digits: np.ndarray) -> None:
    """The sum of an element as digits of 32 bits, the first of them signed."""
    carry = np.int64(0)
    for level in range(len(planes) - 1, 0, -1):
        carry += sign * planes[level, e]
        digits[level] = carry & _LOW
        carry >>= 32
    digits[0] = carry


@compiled.part
def _round_any(planes: np.ndarray, e: int, digits: np.ndarray) -> float:
    """The sum of one element, whatever its planes hold."""
    count = len(planes)
    head = planes[0, e]
    if head & (_NAN | _PLUS | _MINUS):
        one_sign = head & (_PLUS | _MINUS) != _PLUS | _MINUS and not head & _NAN
        return np.nan if not one_sign else np.inf if head & _PLUS else -np.inf
    sign = 1
    _spread(planes, e, sign, digits)
    if digits[0] < 0:
        sign = -1
        _spread(planes, e, sign, digits)
    first = 0
    while first < count and digits[first] == 0:
        first += 1
    if first == count:
        return 0.0
    # The first digit that is not 0, and 64 bits after it; all that follows only decides ties.
    leading = digits[first]
    following = (uint64(digits[first + 1]) << uint64(32)) | uint64(digits[first + 2])
    behind = False
    for place in range(first + 3, count):
        behind |= digits[place] != 0
    # Moved to 63 bits, so that the conversion to float64 is the one rounding.
    dropped = math.frexp(float(leading))[1] + 1
    number = (uint64(leading) << uint64(64 - dropped)) | (following >> uint64(dropped))
    if behind or following & ((uint64(1) << uint64(dropped)) - uint64(1)):
        number |= uint64(1)
    lowest = (head & _LEVEL_BITS) - (count - 2)
    exponent = 32 * (count - 3 - first + lowest) + dropped - 1074
    return math.ldexp(float(sign * np.int64(number)), exponent)


def _round_reals(planes: np.ndarray, out: np.ndarray) -> None:
    """Round the sums of all elements; those of common size in vectors, the others one by one."""
    count = len(planes)
    digits = np.zeros(count + 2, np.int64)  # zeros behind them
    rare = np.empty(_TILE, np.uint8)
    for low in range(0, len(out), _TILE):
        width = min(_TILE, len(out) - low)
        for i in range(uint64(width)):
            e = uint64(low) + i
            head = planes[0, e]
            # The two highest levels as one number of 64 bits, and 32 bits behind it.
            carry = planes[count - 1, e]
            rest = np.int64(0)
            if count > 4:
                rest = carry & _LOW
                carry = (carry >> 32) + planes[3, e]
            tail = carry & _LOW
            number = (planes[1, e] << 32) + planes[2, e] + (carry >> 32)
            # Moved to some 62 bits, so that the conversion to float64 is the one rounding.
            length = (_bits(np.float64(number ^ (number >> 63))) >> 52) - 1022
            shift = min(62 - length, 32)
            lost = (tail & ((np.int64(1) << (32 - shift)) - 1)) | rest
            moved = (number << shift) | (tail >> (32 - shift)) | (lost != 0)
            power = 32 * ((head & _LEVEL_BITS) - 1) - 1074 - shift + 1023
            scale = _number(uint64(power) << uint64(52))
            out[e] = np.float64(moved) * scale
            # Further up sums could overflow, further down the product would not be a normal number.
            high = planes[1, e] + (1 << 29) | planes[2, e] + (1 << 60) >> 31
            fits = uint64(high) < uint64(1 << 30) and length > (0 if rest == 0 else 22)
            rare[i] = not (fits and head < 0x100 and power > 0 and power < 1960)
        for i in range(width):
            if rare[i]:
                out[low + i] = _round_any(planes, low + i, digits)
