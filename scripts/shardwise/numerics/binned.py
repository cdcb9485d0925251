"""Sums that do not depend on the order, to the bit: binned accumulation on a fixed grid.

An element keeps its *top*, the highest level that its terms reach, and the sums of the slices of
its terms at L levels from there down, as integers; integers are kept as the sums of their halves of
32 bits. docs/sums.md has the method, its proof and its error. After J. Demmel and H. D. Nguyen,
"Parallel Reproducible Summation", IEEE Trans. Computers 64(7), 2015, and P. Ahrens, J. Demmel and
H. D. Nguyen, ACM TOMS 46(3), 2020.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.numerics import packed
from shardwise.numerics.packed import Packing
from shardwise.numerics.rows import Rows
from shardwise.plan import problem
from shardwise.plan.problem import LEVELS

LIMIT = 2.0**960
"""Modulus from which a finite number counts as infinite."""

_LEVEL_BITS, _NAN, _PLUS, _MINUS = 0xFF, 0x100, 0x200, 0x400
_LOW = 0xFFFFFFFF
_THREADS = 256
_PARALLEL = 2**18  # numbers that keep a large GPU busy
_MOST_BLOCKS = 2**11  # where each block ends with a few atomic operations
_LONG = 2**10  # numbers of a row that keep the loops of a CPU busy


def plane_shape(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """Shape of the planes of int64 that hold a sum of arrays of ``shape`` and ``dtype``.

    ``(1 + L, *shape)`` for real, ``(1 + L, *shape, 2)`` for complex numbers (real and imaginary
    part), L from :data:`LEVELS`; ``(2, *shape)`` for integers.
    """
    if dtype == "int64":
        return (2, *shape)
    return (1 + LEVELS[dtype], *shape, *((2,) if "complex" in dtype else ()))


class BinnedSum:
    """Adds arrays of one shape and dtype, in any order and any grouping with the same bits.

    On a GPU, work is queued on the current stream, which has to be the same for all of one sum, and
    nothing waits for it. Beside the planes it takes 2 bytes per real number.

    Parameters
    ----------
    xp
        ``numpy`` or ``cupy``.
    shape
        Shape of the arrays, ``(m, p)`` for products.
    dtype
        Their dtype: ``float16/32/64``, ``complex64/128`` or ``int64``.

    Attributes
    ----------
    terms
        How many arrays have been added; more than ``MAX_TERMS`` are an `InputError`.
    """

    def __init__(self, xp: Any, shape: tuple[int, ...], dtype: str) -> None:
        self._xp, self._shape, self._dtype = xp, tuple(shape), np.dtype(dtype)
        planes, *numbers = plane_shape(shape, dtype)
        self._numbers = math.prod(numbers)
        # A few numbers keep few threads busy, or a loop too short: there are then several sums, of
        # every so many arrays.
        most = (_LONG if xp is np else _PARALLEL) // max(1, self._numbers)
        self._sums = 1 << max(0, most.bit_length() - 1)
        width = self._sums * self._numbers
        self._flat = xp.empty((planes, width), xp.int64)
        self._heads = None if dtype == "int64" else xp.empty(width, xp.int16)
        self._kernel: Any = None if xp is np else _kernel(xp, f"add_{_real_name(self._dtype)}")
        self.reset()

    def reset(self) -> None:
        """Begin anew, from zero."""
        self.terms = 0
        self._flat.fill(0)
        if self._heads is not None:
            self._heads.fill(LEVELS[self._dtype.name] - 1)

    def add(self, stack: Any) -> None:
        """Add the arrays of a C-contiguous stack ``(n, *shape)`` of ``xp``."""
        if stack.dtype != self._dtype or stack.shape[1:] != self._shape:
            raise ValueError(f"a stack of {stack.dtype} {stack.shape} for {self._dtype}")
        if not stack.flags.c_contiguous:
            raise ValueError("the stack is not C-contiguous")
        self.add_rows(Rows.of(stack))

    def add_rows(self, rows: Rows) -> None:
        """Add arrays where they lie; on a GPU they lie side by side.

        The sums are loaded and stored once for 8 arrays, so a few calls with many are fastest.
        """
        flat, start, stride, n, width = rows
        if not n:
            return
        if flat.dtype != self._dtype or width != math.prod(self._shape):
            raise ValueError(f"rows of {width} {flat.dtype} for {self._dtype} {self._shape}")
        # The loops look at no bounds.
        if start < 0 or stride < width or start + (n - 1) * stride + width > flat.size:
            raise ValueError(f"{rows[1:]} do not lie within {flat.size} elements")
        self._count(n)
        flat, start, stride, n, width = rows.reals
        if stride != width:
            self._add_rows(rows.reals)
            return
        rounds, rest = divmod(n, self._sums)
        long, last = width * self._sums, width * rest
        self._add_rows(Rows(flat, start, long, rounds, long))
        self._add_rows(Rows(flat, start + rounds * long, last, 1, last))

    def _add_rows(self, rows: Rows) -> None:
        if not rows.n * rows.width:
            return
        if self._kernel is not None:
            self._launch(rows)
            return
        from shardwise.numerics import binned_cpu  # here: tasks on a GPU do without numba

        if self._heads is None:
            binned_cpu.add_integers(rows, self._flat)
        else:
            binned_cpu.add_reals(rows, self._heads, self._flat[1:])

    def _count(self, terms: int) -> None:
        self.terms += terms
        if self.terms > problem.MAX_TERMS:
            raise InputError(
                f"the sum is of more than {problem.MAX_TERMS} products, which is the most that "
                "one sum takes; split the input"
            )

    def _launch(self, rows: Rows) -> None:
        state = (self._flat,) if self._heads is None else (self._heads, self._flat)
        sizes = (np.int64(size) for size in (rows.n, rows.width, self._flat.shape[1]))
        blocks = -(-rows.width // _THREADS)
        self._kernel((blocks,), (_THREADS,), (rows.flat[rows.start :], *sizes, *state))

    def merge(self, planes: np.ndarray, terms: int) -> None:
        """Add the :meth:`planes` of another sum of as many ``terms``; on NumPy only."""
        shape = plane_shape(self._shape, self._dtype.name)
        if planes.dtype != np.int64 or planes.shape != shape:
            raise ValueError(f"planes of {planes.dtype} {planes.shape} for {shape}")
        fresh = not self.terms
        self._count(terms)
        others = planes.reshape(len(planes), self._numbers)
        if self._heads is None:
            self._flat[:, : self._numbers] += others
            return
        from shardwise.numerics import binned_cpu

        if fresh:  # faster if the tops agree
            self._heads[: self._numbers] = others[0]
        binned_cpu.merge_reals(others, self._heads, self._flat[1:])

    def merge_packed(
        self, flat: np.ndarray, starts: Sequence[int], width: int, packing: Packing, terms: int
    ) -> None:
        """Like :meth:`merge`, for the packed planes of one sum, or of several packed alike.

        Parameters
        ----------
        flat
            A buffer of uint16, with ``width`` words per row.
        starts
            The words at which the rows begin, sum by sum.
        terms
            The number of terms in all these sums together.
        """
        each, planes = max(1, sum(packing.words)), len(self._flat)
        sums, rest = divmod(len(starts), each)
        fits = width == self._numbers and packing.fits(planes, (each,)) and not rest
        if flat.dtype != np.uint16 or not fits or not sums:
            raise ValueError(
                f"{len(starts)} rows of {width} {flat.dtype} for {packing} of {planes} planes"
            )
        # The loops look at no bounds.
        if min(starts) < 0 or max(starts) + width > flat.size:
            raise ValueError(f"{starts} and {width} do not lie within {flat.size} elements")
        fresh = not self.terms
        self._count(terms)
        places = np.array(starts, np.int64).reshape(sums, each)
        if self._heads is None:
            for own in places.tolist():
                rows = [flat[start : start + width] for start in own]
                self._flat[:, :width] += packed.unpack(rows, packing)
            return
        from shardwise.numerics import binned_cpu

        if fresh:
            heads = flat[starts[0] : starts[0] + width] if packing.words[0] else packing.first
            self._heads[:width] = heads
        binned_cpu.merge_packed(flat, places, width, packing, self._heads, self._flat[1:])

    def pack(self, out: Any) -> Any:
        """Write the planes to an array of uint16 of ``xp`` as :func:`packed.pack` does; its facts.

        ``out`` is one-dimensional, and long enough for `memory.most_words` of each real number.
        Later additions do not touch it.
        """
        planes = self.planes()
        flat = planes.reshape(len(planes), self._numbers)
        if self._kernel is None:
            return packed.pack(flat, out)
        facts = self._xp.zeros(len(flat) + 2, np.uint64)
        sizes = np.int64(self._numbers), np.int32(len(flat))
        blocks = -(-self._numbers // _THREADS)
        look, pack = (_kernel(self._xp, name) for name in ("look", "pack"))
        look((min(blocks, _MOST_BLOCKS),), (_THREADS,), (flat, *sizes, facts))
        pack((blocks,), (_THREADS,), (flat, *sizes, facts, out))
        return facts

    def planes(self) -> Any:
        """The state: the same bits for the same arrays in any order.

        Plane 0 of real numbers holds the top in bits 0 to 7 and flags in bit 8 (NaN), 9 (+Inf) and
        10 (-Inf); the other planes hold the sums of the levels, from the top down. Integers: the
        sums of the high halves (signed), and of the low halves (unsigned).
        They are the sum's own memory, not a copy, and hold until the next addition.
        """
        if self._heads is not None:
            self._flat[0] = self._heads
        flat = self._flat
        if self._sums > 1:
            on_host = flat if self._xp is np else self._xp.asnumpy(flat)
            flat = self._xp.asarray(_folded(on_host, self._sums))
        return flat.reshape(plane_shape(self._shape, self._dtype.name))


def rounded(planes: np.ndarray, dtype: str) -> np.ndarray:
    """The sum that planes on the CPU hold, rounded once to the nearest number, ties to even.

    It is float64, complex128 or int64; ``dtype`` is that of the arrays that were added.

    Raises
    ------
    InputError
        Where a sum of integers does not fit int64.
    """
    flat = planes.reshape(len(planes), math.prod(planes.shape[1:]))
    if dtype == "int64":
        return _whole(flat).reshape(planes.shape[1:])
    from shardwise.numerics import binned_cpu

    total = np.empty(planes.shape[1:])
    binned_cpu.round_reals(flat, total.reshape(flat.shape[1]))
    return total.view(np.complex128)[..., 0] if "complex" in dtype else total


def double_double(planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of real numbers that planes hold, each as ``high + low`` of two float64.

    Of n terms v, ``high + low`` differs from the sum of the levels by 2⁻¹⁰⁰ n max|v| at most.
    Where the sum is NaN or infinite, so is ``high``, and ``low`` is 0.
    """
    high = np.zeros(planes.shape[1])
    low = np.zeros_like(high)
    unit = 32 * (planes[0] & _LEVEL_BITS).astype(np.int32) - 1074
    for level, sums in enumerate(planes[1:]):
        # Halves of 32 bits are exact in float64. What each addition rounds off is known (Knuth).
        for half in (sums & ~_LOW, sums & _LOW):
            term = np.ldexp(half.astype(np.float64), unit - 32 * level)
            total = high + term
            part = total - high
            low += (high - (total - part)) + (term - part)
            high = total
    total = high + low
    low -= total - high
    high = _flagged(total, planes[0])
    return high, np.where(np.isfinite(high), low, 0.0)


def _kernel(xp: Any, name: str) -> Any:
    """A kernel of binned.cu; cupy compiles them once."""
    source = Path(__file__).with_name("binned.cu").read_text("utf-8")
    # Neither option changes a sum or a difference; the second is there for whoever adds a product.
    return xp.RawModule(code=source, options=("-std=c++17", "-fmad=false")).get_function(name)


def _real_name(dtype: np.dtype) -> str:
    """The dtype of the parts of a number."""
    return f"float{4 * dtype.itemsize}" if dtype.kind == "c" else dtype.name


def _folded(planes: np.ndarray, sums: int) -> np.ndarray:
    """One sum of ``sums``, a power of two, that lie side by side in planes ``(P, sums * n)``."""
    while sums > 1:
        sums //= 2
        half = planes.shape[1] // 2
        planes, others = planes[:, :half].copy(), planes[:, half:]
        if len(planes) > 2:
            _merge_reals(planes[1:], planes[0], others)
        else:
            planes += others
    return planes


def _lowered(sums: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Levels ``(L, numbers)`` seen from tops that are higher ``by`` so many levels."""
    source = np.arange(len(sums))[:, np.newaxis] - by
    return np.where(source >= 0, np.take_along_axis(sums, np.maximum(source, 0), 0), 0)


def _merge_reals(sums: np.ndarray, heads: np.ndarray, others: np.ndarray) -> None:
    """Add the planes ``others`` ``(1 + L, numbers)`` to sums and heads, without numba."""
    other_tops, tops = others[0] & _LEVEL_BITS, (heads & _LEVEL_BITS).astype(np.int64)
    more = others[1:]
    if (other_tops != tops).any():
        highest = np.maximum(tops, other_tops)
        sums[:] = _lowered(sums, highest - tops)
        more = _lowered(more, highest - other_tops)
        heads += (highest - tops).astype(heads.dtype)
    sums += more
    heads |= (others[0] & ~_LEVEL_BITS).astype(heads.dtype)


def _whole(planes: np.ndarray) -> np.ndarray:
    """Sums of integers from those of their halves ``(2, numbers)``."""
    high = planes[0] + (planes[1] >> 32)
    if high.size and (high.max() >= 2**31 or high.min() < -(2**31)):
        raise InputError(
            "the sum of the integer products does not fit int64; save the input as float64"
        )
    total: np.ndarray = (high << 32) | (planes[1] & _LOW)
    return total


def _flagged(total: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """NaN and infinities where heads have flags."""
    plus, minus = heads & _PLUS != 0, heads & _MINUS != 0
    total = np.where(plus, np.inf, np.where(minus, -np.inf, total))
    return np.where((heads & _NAN != 0) | (plus & minus), np.nan, total)
