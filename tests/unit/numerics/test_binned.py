"""Binned sums: what the state is, that no order changes it, and how it is rounded."""

import math
import operator
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.numerics import binned as numerics_binned
from shardwise.numerics import binned_cpu
from shardwise.numerics.binned import LIMIT, BinnedSum, rounded
from shardwise.numerics.rows import Rows
from shardwise.plan.problem import LEVELS

from tests.factories import SCRIPTS

REALS = {"float16": (-24, 15), "float32": (-149, 127), "float64": (-1074, 962)}
"""Dtypes, and the exponents of their powers of two; of float64's those up to past the limit."""

NAN, PLUS, MINUS = 0x100, 0x200, 0x400


def rows(numbers, dtype="float64"):
    """Numbers as a stack of arrays of one element."""
    return np.array(numbers, dtype).reshape(-1, 1)


def binned(stack, dtype=None, cuts=()):
    """The sum of a stack that is added in groups which end at the cuts."""
    total = BinnedSum(np, stack.shape[1:], dtype or stack.dtype.name)
    for group in np.split(stack, sorted(cuts)):
        total.add(np.ascontiguousarray(group))
    return total


def value(numbers, dtype="float64"):
    """The rounded sum of some numbers."""
    return rounded(binned(rows(numbers, dtype)).planes(), dtype)[0]


def unit(level):
    """The unit u of a level."""
    return Fraction(2) ** (32 * level - 1074)


def defined(numbers, kept=LEVELS["float64"]):
    """The planes of one element by their definition, in integers: multiples of 2⁻¹⁰⁷⁴."""
    with np.errstate(invalid="ignore"):  # NaN that signal
        numbers = np.asarray(numbers).astype("float64")
    finite = numbers[abs(numbers) < LIMIT].tolist()
    scaled = [p << 1074 - (q.bit_length() - 1) for p, q in map(float.as_integer_ratio, finite)]
    top = kept - 1
    while any(abs(v) > 2**31 << 32 * top for v in scaled):
        top += 1

    def nearest(v, shift):
        # Half of the divisor, less 1 where the quotient is even: ties to even.
        return v if not shift else (v + (1 << shift - 1) - 1 + (v >> shift & 1)) >> shift

    sums = [
        sum(nearest(v, 32 * j) - (nearest(v, 32 * j + 32) << 32) for v in scaled)
        for j in range(top, top - kept, -1)
    ]
    flags = NAN if np.isnan(numbers).any() else 0
    flags |= PLUS if (numbers >= LIMIT).any() else 0
    flags |= MINUS if (numbers <= -LIMIT).any() else 0
    return [top | flags, *sums]


def scattered(random, shape, dtype, kind):
    """Numbers for the loops: alike, of any size, of any bits, growing, or with infinities."""
    if kind == "bits":
        return np.frombuffer(random.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype)
    numbers = random.standard_normal(shape)
    low, high = REALS[dtype]
    if kind == "mixed":
        numbers *= np.exp2(random.uniform(max(low, -70), min(high, 70), shape))
    if kind == "growing":
        numbers *= np.exp2(np.linspace(max(low, -900) + 4, min(high, 900) - 4, shape[0]))[:, None]
    if kind == "special":
        odd = random.random(shape) < 0.01
        numbers[odd] = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], odd.sum())
    if kind == "sparse":
        numbers[random.random(shape) < 0.5] = 0
    return narrowed(numbers, dtype)


def kept(numbers, dtype):
    """What a sum of finite numbers may not lose: each rounded to the lowest level's unit."""
    lowest = unit(defined(numbers, LEVELS[dtype])[0] - LEVELS[dtype] + 1)
    return sum((round(Fraction(float(v)) / lowest) * lowest for v in numbers), Fraction(0))


def edges(dtype):
    """Powers of two and their neighbours, where slices are ties and tops change."""
    low, high = REALS[dtype]
    shapes = (1.0, -1.0, 1.5, -1.5, 1 + 2**-10, 1 - 2**-11, 0.0, -0.0, 1 + 2.0**-33, 1 + 2.0**-52)
    powers = st.integers(low, high)
    grown = st.builds(math.ldexp, st.sampled_from(shapes), powers)
    # Half a unit of a level, and a neighbour: the ties.
    ties = st.sampled_from([32 * j - 1074 - 1 for j in range(64) if low < 32 * j - 1075 <= high])
    return grown | st.builds(math.ldexp, st.sampled_from(shapes), ties)


def reals(dtype, **options):
    """Any numbers of a dtype, often the awkward ones."""
    width = 8 * np.dtype(dtype).itemsize
    return st.floats(width=width, **options) | edges(dtype)


def columns(dtype):
    """A stack of one to twelve arrays of three numbers of a real dtype."""
    row = st.tuples(*[reals(dtype)] * 3)
    return st.lists(row, min_size=1, max_size=12).map(lambda r: narrowed(r, dtype))


def narrowed(numbers, dtype):
    """Numbers in a dtype, whatever does not fit becoming infinite."""
    with np.errstate(over="ignore"):
        return np.array(numbers, "float64").astype(dtype)


@pytest.mark.parametrize("dtype", REALS)
@given(data=st.data())
def test_the_state_is_the_one_defined(dtype, data):
    """Top, flags and the sum of each level are those of exact arithmetic, for any numbers."""
    stack = data.draw(columns(dtype))
    planes = binned(stack).planes()
    assert planes.dtype == np.int64
    assert planes.T.tolist() == [defined(column, LEVELS[dtype]) for column in stack.T]


@pytest.mark.parametrize("dtype", REALS)
@settings(max_examples=25)
@given(data=st.data())
def test_rows_in_place_give_the_state_that_is_defined(dtype, data):
    """Wide, narrow and strided rows of a read-only buffer, in groups; gaps are never touched."""
    n = data.draw(st.integers(1, 90))
    width = data.draw(st.sampled_from([1, 2, 3, 64, 1023, 1024, 1025, 2100]))
    start, gap = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([0, 0, 1, 7]))
    kind = data.draw(st.sampled_from(["alike", "mixed", "bits", "growing", "special", "sparse"]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    stack = scattered(random, (n, width), dtype, kind).reshape(n, width)
    flat = np.full(start + n * (width + gap), np.nan, dtype)
    whole = Rows(flat, start, width + gap, n, width)
    whole.array[:] = stack
    flat.flags.writeable = False
    total = BinnedSum(np, (width,), dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    for low, high in zip([0, *cuts], [*cuts, n], strict=True):
        total.add_rows(whole._replace(start=start + low * whole.stride, n=high - low))
    planes = total.planes()
    some = {0, width - 1, *random.integers(0, width, 12).tolist()}
    for e in some:
        assert planes[:, e].tolist() == defined(stack[:, e], LEVELS[dtype])
    assert planes.tobytes() == binned(stack[::-1]).planes().tobytes()


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("n", [7, 20])
def test_the_last_digit_of_small_numbers_is_not_lost(dtype, n):
    """Beside a large number, each size of small ones: at some the lowest level begins to count."""
    largest, digits = REALS[dtype][1] - 1, np.finfo(dtype).nmant
    lowest = max(REALS[dtype][0], largest - 32 * LEVELS[dtype])
    for exponent in range(lowest, largest):
        flat = np.full(2 * n, math.ldexp(1 + 2.0**-digits, exponent)).astype(dtype)
        flat[0] = math.ldexp(1.0, largest)
        total = BinnedSum(np, (1,), dtype)
        total.add_rows(Rows(flat, 0, 2, n, 1))
        assert total.planes()[:, 0].tolist() == defined(flat[::2], LEVELS[dtype])


@pytest.mark.parametrize("dtype", [*REALS, "complex64", "complex128", "int64"])
@given(data=st.data())
def test_no_order_and_no_grouping_changes_a_bit(dtype, data):
    """Any permutation, any groups, and any tree of merges end in the same planes."""
    if dtype == "int64":
        row = st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4)
        stack = np.array(data.draw(st.lists(row, min_size=1, max_size=12)), dtype)
    elif "complex" in dtype:
        part = {"complex64": "float32", "complex128": "float64"}[dtype]
        row = st.tuples(*[reals(part)] * 4)
        pairs = narrowed(data.draw(st.lists(row, min_size=1, max_size=12)), part)
        stack = pairs.view(dtype)
    else:
        stack = data.draw(columns(dtype))
    expected = binned(stack).planes().tobytes()
    shuffled = stack[data.draw(st.permutations(range(len(stack))))]
    cuts = data.draw(st.lists(st.integers(0, len(stack)), max_size=4))
    assert binned(shuffled, cuts=cuts).planes().tobytes() == expected
    parts = [(binned(p, dtype), len(p)) for p in np.split(shuffled, sorted(cuts))]
    while len(parts) > 1:
        one, terms = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        i = data.draw(st.integers(0, len(parts) - 1))
        parts[i][0].merge(one.planes(), terms)
        parts[i] = (parts[i][0], parts[i][1] + terms)
    assert parts[0][0].planes().tobytes() == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([2.0**53, 1.0], 2.0**53),
        ([2.0**53, 1.0, 2.0**-40], 2.0**53 + 2),
        ([2.0**53, 1.0, -(2.0**-40)], 2.0**53),
        ([2.0**53 + 2, 1.0], 2.0**53 + 4),
        ([-(2.0**53), -1.0], -(2.0**53)),
        ([-(2.0**53), -1.0, -(2.0**-40)], -(2.0**53) - 2),
        ([1.0, 2.0**-53], 1.0),
        ([1.0, 2.0**-53, 2.0**-60], 1.0 + 2.0**-52),
        ([2.0**900, 1.0, -(2.0**900)], 0.0),
        ([2.0**60, 2.0**-20, -(2.0**60)], 2.0**-20),
        ([math.nextafter(LIMIT, 0)] * 2 + [-math.nextafter(LIMIT, 0)], math.nextafter(LIMIT, 0)),
        ([-0.0, -0.0], 0.0),
        ([], 0.0),
    ],
)
def test_ties_of_the_total(numbers, expected):
    """A tie goes to the even number, the smallest part beside it decides, and zero has no sign."""
    assert value(numbers).tobytes() == np.float64(expected).tobytes()


@pytest.mark.parametrize("level", [3, 33, 62])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_at_the_edge_of_a_level(level, sign):
    """2³¹ units stay below the next level, and one bit more does not."""
    edge = sign * math.ldexp(1.0, 32 * level - 1074 + 31)
    assert binned(rows([edge])).planes()[:, 0].tolist() == [level, sign * 2**31, 0, 0, 0]
    above = sign * math.nextafter(abs(edge), math.inf)
    assert int(binned(rows([above])).planes()[0, 0]) == level + 1


def any_planes(random, levels, tops, width):
    """Planes of a state: levels of all sizes, tops up to so many apart, equal in some tiles."""
    planes = random.integers(-(2**62), 2**62, (1 + levels, width)) >> random.integers(0, 62)
    mixed = np.repeat(random.random(-(-width // 512)) < 0.5, 512)[:width]
    planes[0] = levels - 1 + np.where(mixed, random.integers(0, tops + 1, width), tops)
    planes[0] |= random.choice([0, NAN, PLUS, MINUS, PLUS | MINUS], width)
    return planes


@pytest.mark.parametrize("levels", [3, 4])
@given(
    seed=st.integers(0, 2**32),
    width=st.integers(0, 3000),
    beyond=st.integers(0, 5),
    tops=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_the_compiled_merge_is_that_of_numpy(levels, seed, width, beyond, tops):
    """Any two states, whose planes may lie apart: the same bits, and nothing beyond them."""
    random = np.random.default_rng(seed)
    own, other = (any_planes(random, levels, top, width + beyond) for top in tops)
    other.flags.writeable = False
    expected = own.copy()
    numerics_binned._merge_reals(expected[1:, :width], expected[0, :width], other[:, :width])
    heads, sums = own[0].astype(np.int16), own[1:]
    binned_cpu.merge_reals(other[:, :width], heads, sums)
    np.testing.assert_array_equal(heads, expected[0])
    np.testing.assert_array_equal(sums, expected[1:])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.randoms())
def test_integers_are_exact_or_refused(numbers, random):
    """Sums are Python's where they fit int64, whatever the partial sums; else they are refused."""
    random.shuffle(numbers)
    planes = binned(rows(numbers, "int64")).planes()
    if -(2**63) <= sum(numbers) < 2**63:
        found = rounded(planes, "int64")
        assert found.dtype == np.int64
        assert int(found[0]) == sum(numbers)
    else:
        with pytest.raises(InputError, match="does not fit int64; save the input as float64"):
            rounded(planes, "int64")


@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_terms_as_are_allowed_cannot_overflow(sign):
    """The largest slices, 2³¹ times, still fit an accumulator and are rounded rightly."""
    edge = sign * math.ldexp(1.0, 32 * 40 - 1074 + 31)
    planes = binned(rows([edge])).planes().copy()
    for _ in range(31):  # twice as many, 31 times
        total = BinnedSum(np, (1,), "float64")
        total.merge(planes, 0)
        total.merge(planes, 0)
        planes = total.planes().copy()
    assert int(planes[1, 0]) == sign * 2**62
    assert rounded(planes, "float64")[0] == edge * 2.0**31


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
def test_nothing_is_no_error(dtype):
    """No arrays, and no elements, are sums too."""
    total = BinnedSum(np, (0, 3), dtype)
    total.add(np.zeros((2, 0, 3), dtype))
    assert rounded(total.planes(), dtype).shape == (0, 3)
    empty = BinnedSum(np, (2,), dtype)
    empty.add(np.zeros((0, 2), dtype))
    assert rounded(empty.planes(), dtype).tolist() == [0, 0]


def test_what_does_not_belong_to_the_sum_is_refused():
    """Another dtype, another shape, or a transposed stack are faults of the caller."""
    total = BinnedSum(np, (2, 2), "float32")
    with pytest.raises(ValueError, match="a stack of float64"):
        total.add(np.zeros((3, 2, 2)))
    with pytest.raises(ValueError, match="for float32"):
        total.add(np.zeros((3, 2, 1), "float32"))
    with pytest.raises(ValueError, match="C-contiguous"):
        total.add(np.zeros((3, 2, 2), "float32").transpose(0, 2, 1))
    for rows_there in ((1, 4, 3, 4), (-1, 4, 3, 4), (0, 3, 3, 4), (0, 4, 4, 4)):
        with pytest.raises(ValueError, match="do not lie within 12 elements"):
            total.add_rows(Rows(np.zeros(12, "float32"), *rows_there))
    with pytest.raises(ValueError, match="rows of 3 float32"):
        total.add_rows(Rows(np.zeros(12, "float32"), 0, 4, 3, 3))
    with pytest.raises(ValueError, match="planes of"):
        total.merge(np.zeros((5, 2, 1), np.int64), 1)


@pytest.mark.parametrize("dtype", REALS)
@given(data=st.data())
def test_two_numbers_hold_more_than_a_hundred_bits(dtype, data):
    """As high and low part a sum is as good as exact, and NaN and infinities stand in the high."""
    stack = data.draw(columns(dtype))
    planes = binned(stack).planes()
    high, low = numerics_binned.double_double(planes)
    np.testing.assert_array_equal(np.isfinite(high), np.isfinite(rounded(planes, dtype)))
    for column, *parts in zip(stack.T.tolist(), high.tolist(), low.tolist(), strict=True):
        if math.isfinite(parts[0]):
            off = sum(map(Fraction, parts)) - kept(column, dtype)
            largest = Fraction(max(map(abs, column)))
            assert abs(off) <= max(largest * len(column) / 2**100, Fraction(1, 2**1074))
        else:
            assert parts[1] == 0


def test_numba_is_imported_late():
    """A task on a GPU, which adds by kernels of its own, does not pay for it."""
    line = (
        "import sys, shardwise.multiply.session, shardwise.numerics.binned; "
        "sys.exit('numba' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    subprocess.run([sys.executable, "-c", line], check=True, env=environment)


@pytest.mark.parametrize(("dtype", "levels"), [("float32", 3), ("float64", 4)])
def test_any_state_is_rounded_to_the_nearest(dtype, levels):
    """Planes of all sizes and signs, whatever sums they come from: as exact fractions round."""
    random = np.random.default_rng(5)
    planes = np.zeros((1 + levels, 4000), np.int64)
    planes[0] = random.integers(levels - 1, 33, 4000)
    for level in range(1, levels + 1):
        drop = random.integers(0, 62, 4000)
        there = random.random(4000) < 0.8
        planes[level] = (random.integers(-(2**62), 2**62, 4000) >> drop) * there
    for column, found in zip(planes.T.tolist(), rounded(planes, dtype).tolist(), strict=True):
        units = [Fraction(2) ** (32 * (column[0] - level) - 1074) for level in range(levels)]
        exact = sum(map(operator.mul, column[1:], units))
        assert found == float(exact)
