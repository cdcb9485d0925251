"""Binned sums: what the state is, that no order changes it, and how it is rounded."""

import importlib
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
from shardwise.numerics.binned import LIMIT, BinnedSum, plane_shape, rounded
from shardwise.numerics.rows import Rows
from shardwise.plan import problem
from shardwise.plan.problem import LEVELS

from tests.factories import FLOATS, SCRIPTS, noise
from tests.workspace import REPO

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
    """The planes of one element by their definition, in exact arithmetic; so many levels."""
    flags, terms = 0, []
    for number in map(float, numbers):
        if math.isnan(number):
            flags |= NAN
        elif abs(number) >= LIMIT:
            flags |= PLUS if number > 0 else MINUS
        else:
            terms.append(Fraction(number))
    top = kept - 1
    while any(abs(term) > 2**31 * unit(top) for term in terms):
        top += 1
    levels = range(top, top - kept, -1)
    sums = [
        sum(round(v / unit(level)) - 2**32 * round(v / unit(level + 1)) for v in terms)
        for level in levels
    ]
    return [top | flags, *sums]


def modelled(numbers, kept):
    """What :func:`defined` says, in integers, which are multiples of 2⁻¹⁰⁷⁴; for many numbers."""
    with np.errstate(invalid="ignore"):  # NaN that signal
        numbers = numbers.astype("float64")
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
    found = binned(stack).planes()
    assert found.dtype == np.int64
    assert found.T.tolist() == [defined(column, LEVELS[dtype]) for column in stack.T]


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
        assert planes[:, e].tolist() == modelled(stack[:, e], LEVELS[dtype])
    assert planes.tobytes() == binned(stack[::-1]).planes().tobytes()


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "int64"])
@pytest.mark.parametrize("width", [1, 3, 2100])
def test_strided_rows_are_those_of_a_stack(dtype, width):
    """Complex numbers and integers in place, some elements of each array only."""
    stack = (noise((50, width + 4), "complex128") * 1e9).view("f8")[:, : width + 4].astype(dtype)
    stack.flags.writeable = False
    total = BinnedSum(np, (width,), dtype)
    total.add_rows(Rows(stack.reshape(-1), 3, width + 4, 50, width))
    expected = binned(np.ascontiguousarray(stack[:, 3 : width + 3])).planes()
    assert total.planes().tobytes() == expected.tobytes()
    if dtype == "int64":
        exact = [sum(column) for column in stack[:, 3 : width + 3].T.tolist()]
        assert rounded(expected, dtype).tolist() == exact


def test_a_top_that_grows_within_a_tile():
    """Elements of one tile grow at different rows, among them the last, and others not at all."""
    stack = np.random.default_rng(3).standard_normal((70, 1500))
    for row, element, factor in ((5, 7, 1e30), (6, 7, 1e60), (69, 1499, 1e200), (64, 1023, 1e15)):
        stack[row, element] *= factor
    planes = binned(stack).planes()
    for element in (6, 7, 8, 1022, 1023, 1024, 1499):
        assert planes[:, element].tolist() == modelled(stack[:, element], LEVELS["float64"])
    assert len(set(planes[0].tolist())) > 3


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("n", [7, 8, 20])
def test_the_last_digit_of_small_numbers_is_not_lost(dtype, n):
    """Beside a large number, each size of small ones: at some the lowest level begins to count."""
    largest, digits = REALS[dtype][1] - 1, np.finfo(dtype).nmant
    lowest = max(REALS[dtype][0], largest - 32 * LEVELS[dtype])
    for exponent in range(lowest, largest):
        flat = np.full(2 * n, math.ldexp(1 + 2.0**-digits, exponent)).astype(dtype)
        flat[0] = math.ldexp(1.0, largest)
        total = BinnedSum(np, (1,), dtype)
        total.add_rows(Rows(flat, 0, 2, n, 1))
        assert total.planes()[:, 0].tolist() == modelled(flat[::2], LEVELS[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("condition", [1e0, 1e8, 1e16, 1e24, 1e32])
def test_ill_conditioned_sums_are_within_the_bound(dtype, condition, monkeypatch):
    """At most n u_L / 2 and the last rounding, for the benchmark's numbers; exact where all fit."""
    monkeypatch.syspath_prepend(REPO / "benchmarks")
    accuracy = importlib.import_module("accuracy")
    stack = accuracy.stack(condition, dtype, terms=2000)
    numbers = stack[:, 0].tolist()
    exact = sum(map(Fraction, numbers))
    found = Fraction(accuracy.ours(stack))
    lowest = unit(int(binned(stack).planes()[0, 0]) - LEVELS[dtype] + 1)
    lost = len(numbers) * lowest / 2
    assert abs(found - exact) <= lost + Fraction(math.ulp(float(exact))) / 2
    assert lowest / 2 <= Fraction(2) ** (32 - 32 * LEVELS[dtype]) * Fraction(max(numbers))
    if condition <= (1e8 if dtype == "float32" else 1e16):
        assert float(found) == math.fsum(numbers)


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


@pytest.mark.parametrize("dtype", REALS)
@given(data=st.data())
def test_the_total_is_rounded_once(dtype, data):
    """The result is the nearest float64 to the sum of what the levels keep of each number."""
    numbers = data.draw(
        st.lists(reals(dtype, allow_nan=False, allow_infinity=False), min_size=1, max_size=12)
    )
    numbers = [v for v in narrowed(numbers, dtype) if abs(float(v)) < LIMIT]
    assert value(numbers or [0.0], dtype) == float(kept(numbers, dtype))


@pytest.mark.parametrize("condition", [1e16, 1e20])
@given(seed=st.integers(0, 2**32 - 1))
def test_sums_that_cancel(condition, seed):
    """Where nearly all cancels the error is within its bound, which plain summation exceeds."""
    random = np.random.default_rng(seed)
    large = random.standard_normal(200) * condition
    numbers = random.permutation([*large, *-large, *random.standard_normal(100)])
    exact = sum(map(Fraction, numbers.tolist()))
    found = Fraction(float(value(numbers)))
    lost = len(numbers) * Fraction(2) ** -96 * Fraction(float(max(abs(numbers))))
    assert abs(found - exact) <= lost + Fraction(math.ulp(float(exact))) / 2
    assert abs(Fraction(float(np.cumsum(numbers)[-1])) - exact) > 1000 * abs(found - exact)


@given(st.lists(st.integers(-1063, 956), min_size=2, max_size=12), st.randoms())
def test_any_scale(exponents, random):
    """From 1e-320 to 1e288, largest first or last, the planes are those of the definition."""
    numbers = [math.ldexp(random.uniform(-1, 1), e) for e in exponents]
    expected = defined(numbers)
    for order in (sorted(numbers, key=abs), sorted(numbers, key=abs, reverse=True), numbers):
        one_by_one = binned(rows(order), cuts=range(len(order)))
        assert one_by_one.planes()[:, 0].tolist() == expected


@given(st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=20))
def test_subnormal_numbers_are_exact(numbers):
    """Sums of multiples of the smallest subnormal are exact where they fit 53 bits."""
    tiny = [math.ldexp(n, -1074) for n in numbers]
    assert Fraction(float(value(tiny))) == Fraction(float(sum(numbers))) * Fraction(2) ** -1074


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
    ],
)
def test_ties_of_the_total(numbers, expected):
    """A tie goes to the even number, and the smallest part beside it decides."""
    assert value(numbers) == expected


@pytest.mark.parametrize("level", [3, 4, 33, 62])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_at_the_edge_of_a_level(level, sign):
    """2³¹ units stay below the next level, and one bit more does not."""
    edge = sign * math.ldexp(1.0, 32 * level - 1074 + 31)
    assert binned(rows([edge])).planes()[:, 0].tolist() == [level, sign * 2**31, 0, 0, 0]
    above = sign * math.nextafter(abs(edge), math.inf)
    assert int(binned(rows([above])).planes()[0, 0]) == level + 1


def test_small_parts_below_a_later_top_are_dropped_one_by_one():
    """Numbers that are rounded away beside a large one are so too where they met before it."""
    large, small = 2.0**120, 2.0**120 * 2.0**-97 * 0.6
    merged = binned(rows([small] * 1000))
    merged.merge(binned(rows([large])).planes(), 1)
    expected = binned(rows([large] + [small] * 1000)).planes()
    assert merged.planes().tobytes() == expected.tobytes()
    assert expected[:, 0].tolist() == defined([large] + [small] * 1000)


@pytest.mark.parametrize(
    ("numbers", "flags", "expected"),
    [
        ([1.0, math.nan], NAN, math.nan),
        ([math.inf, 1.0], PLUS, math.inf),
        ([-math.inf, 1.0], MINUS, -math.inf),
        ([math.inf, -math.inf], PLUS | MINUS, math.nan),
        ([math.inf, math.nan], PLUS | NAN, math.nan),
        ([LIMIT, 1.0], PLUS, math.inf),
        ([-LIMIT, 1.0], MINUS, -math.inf),
        ([1.7e308, -1.7e308], PLUS | MINUS, math.nan),
    ],
)
@pytest.mark.parametrize("step", [1, -1])
def test_special_values(numbers, flags, expected, step):
    """NaN, infinities and what counts as infinite mark their own element and no other."""
    stack = np.array([[v, 3.0] for v in numbers[::step]])
    planes = binned(stack).planes()
    assert int(planes[0, 0]) & ~0xFF == flags
    assert planes[:, 1].tolist() == defined(stack[:, 1])
    found = rounded(planes, "float64")
    assert np.array_equal(found, [expected, 3.0 * len(numbers)], equal_nan=True)


@pytest.mark.parametrize("step", [1, -1])
def test_the_limit_holds_beside_numbers_just_below_it(step):
    """A number past the limit counts as infinite also where the top is the highest already."""
    below = math.nextafter(LIMIT, 0)
    assert value([below, below, -below]) == below
    one_by_one = binned(rows([below, LIMIT, -2 * LIMIT][::step]), cuts=[1, 2])
    planes = one_by_one.planes()
    assert planes[:, 0].tolist() == defined([below, LIMIT, -2 * LIMIT])


def test_zeros_of_any_sign_sum_to_plus_zero():
    """Negative zero leaves no trace, and nothing at all is 0."""
    found = np.array([value([-0.0, -0.0]), value([1.0, -1.0]), value([])])
    assert found.tobytes() == np.zeros(3).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 15, 1024, 2500])
def test_states_of_any_width_are_merged(dtype, width):
    """Narrower and wider than what a loop visits at once, with tops mixed and flags."""
    scales = 10.0 ** np.random.default_rng(1).integers(-4, 4, (9, width, 3))
    stack = (noise((9, width, 3), dtype, 2) * scales).astype(dtype)
    stack[3, width // 2, 1] = np.nan
    found = binned(stack[:4])
    found.merge(binned(stack[4:]).planes(), 5)
    assert found.planes().tobytes() == binned(stack).planes().tobytes()
    found.merge(binned(stack).planes(), 9)
    assert found.planes().tobytes() == binned(np.concatenate([stack, stack])).planes().tobytes()


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


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_have_the_shape_and_type_of_the_sum(dtype):
    """Real and complex stacks give float64 and complex128, and each element its own sum."""
    stack = noise((50, 4, 3), dtype)
    total = binned(stack)
    assert total.planes().shape == plane_shape((4, 3), dtype)
    found = rounded(total.planes(), dtype)
    assert found.shape == (4, 3)
    assert found.dtype == ("complex128" if "complex" in dtype else "float64")
    for i, j in np.ndindex(4, 3):
        terms = stack[:, i, j].astype("complex128")
        expected = complex(math.fsum(terms.real), math.fsum(terms.imag))
        assert complex(found[i, j]) == expected


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
def test_a_part_of_the_elements_can_be_merged_alone(dtype):
    """Planes cut along their elements, as ranks hold them, give the same parts of the sum."""
    stack = (noise((6, 4, 3), "float64") * 1e3).astype(dtype)
    whole = binned(stack).planes()
    flat = [
        binned(p).planes().reshape(len(whole), 12, *whole.shape[3:]) for p in (stack[:2], stack[2:])
    ]
    part = BinnedSum(np, (5,), dtype)
    for planes, terms in zip(flat, (2, 4), strict=True):
        part.merge(planes[:, 4:9], terms)
    expected = rounded(whole, dtype).reshape(12)[4:9]
    assert rounded(part.planes(), dtype).tobytes() == expected.tobytes()


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


@pytest.mark.parametrize("fits", [True, False])
def test_integers_beyond_int64_that_cancel(fits):
    """Shards whose own sums do not fit can be merged to a total that does."""
    total = binned(rows([2**63 - 1] * 5, "int64"))
    with pytest.raises(InputError):
        rounded(total.planes(), "int64")
    total.merge(binned(rows([-(2**63)] * (5 if fits else 3), "int64")).planes(), 5 if fits else 3)
    if fits:
        assert rounded(total.planes(), "int64").tolist() == [-5]
    else:
        with pytest.raises(InputError):
            rounded(total.planes(), "int64")


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_more_terms_than_the_accumulators_hold_are_refused(dtype, monkeypatch):
    """The limit counts arrays that are added and those behind merged planes."""
    monkeypatch.setattr(problem, "MAX_TERMS", 5)
    stack = np.ones((3, 1), dtype)
    total = binned(stack)
    total.add(stack[:2])
    with pytest.raises(InputError, match="more than 5 products"):
        total.add(stack[:1])
    merged = binned(stack)
    with pytest.raises(InputError, match="more than 5 products"):
        merged.merge(binned(stack).planes(), 3)


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
    assert (
        subprocess.run([sys.executable, "-c", line], check=False, env=environment).returncode == 0
    )


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
