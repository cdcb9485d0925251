"""Statistics over all products: what they are, and that no cut and no order changes a bit."""

import functools
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.files.paths import STATISTICS
from shardwise.numerics import statistics
from shardwise.numerics.rows import Rows
from shardwise.plan.problem import NEEDS_ORDER, statistic_dtype

from tests.factories import FLOATS, noise, stack

DTYPES = (*FLOATS, "int64")
ULP = 2.0**-53


def names_of(dtype):
    """The statistics that products of a dtype have."""
    return [s for s in STATISTICS if "complex" not in dtype or s not in NEEDS_ORDER]


def gathered(own, matrices):
    """The results of some states, by name."""
    return {name: array for state in own for name, array in state.results(matrices).items()}


def of(products, names=None):
    """The statistics of products ``(N, width)``, added in one run."""
    dtype = products.dtype.name
    own = statistics.accumulators(names or names_of(dtype), products.shape[1], dtype, products[0])
    for state in own:
        state.add(Rows.of(products), 0)
    return gathered(own, len(products))


def one(name, numbers, dtype="float64"):
    """One statistic of products of one element."""
    return of(np.array(numbers, dtype).reshape(-1, 1), [name])[name][0]


def spread_bound(n):
    """The relative error of the standard deviation of n numbers, as documented."""
    return (1.01 * math.sqrt(n) + 4) * ULP


def exact_std(numbers):
    """The standard deviation of numbers, from exact arithmetic."""
    terms = [Fraction(v) for v in numbers]
    mean = sum(terms) / len(terms)
    variance = sum((v - mean) ** 2 for v in terms) / len(terms)
    scale = Fraction(4) ** 200  # so that a whole root has digits enough
    return Fraction(math.isqrt(int(variance * scale)), 2**200)


@st.composite
def products(draw, dtype):
    """Products ``(N, width)`` with zeros of both signs, ties, and at times NaN and infinities."""
    n, width = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    shape, seed = (n, width), draw(st.integers(0, 2**32))
    if draw(st.booleans()):
        made = stack(shape, dtype, seed)
    elif dtype == "int64":
        made = np.random.default_rng(seed).integers(-(2**30), 2**30, shape)
    else:
        made = noise(shape, dtype, seed)
    if dtype != "int64":
        made[(made == 0) & (np.random.default_rng(seed).random(shape) < 0.5)] *= -1
        for special in draw(st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=3)):
            made[draw(st.integers(0, n - 1)), draw(st.integers(0, width - 1))] = special
    return made


def shuffled_runs(data, n):
    """The runs ``(low, high)`` of a random cut of n matrices, in random order."""
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=6))) if n > 1 else []
    return data.draw(st.permutations(list(zip([0, *cuts], [*cuts, n], strict=True))))


def in_a_file(run, data):
    """The arrays of a run as they lie in a file, between others."""
    before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    wide = np.full((len(run), before + run.shape[1] + after), 99, run.dtype)
    wide[:, before : before + run.shape[1]] = run
    wide.flags.writeable = False
    return Rows(wide.reshape(-1), before, wide.shape[1], len(run), run.shape[1])


def bits(results):
    """Names and bits of results."""
    return {name: (array.dtype.name, array.tobytes()) for name, array in results.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_no_cut_and_no_order_changes_a_bit(dtype, data):
    """Any runs in any order, over any number of states merged in any order: the same bits.

    Nor do the sizes of blocks in memory. A dump may lie in a buffer that is used again.
    """
    made = data.draw(products(dtype))
    n, width = made.shape
    names = names_of(dtype)
    if dtype == "int64" and max(abs(math.prod(c)) for c in made.T.tolist()) >= 2**63:
        names.remove("prod")
    columns, block = data.draw(st.sampled_from([(2, 12), (2**15, 2**18)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_COLUMNS", columns)
        patch.setattr(statistics, "_BLOCK", block)
        ranks = [
            statistics.accumulators(names, width, dtype, made[0])
            for _ in range(data.draw(st.integers(1, 4)))
        ]
        for low, high in shuffled_runs(data, n):
            for state in data.draw(st.sampled_from(ranks)):
                state.add(in_a_file(made[low:high], data), low)
    root, *others = data.draw(st.permutations(ranks))
    for other in others:
        for mine, its in zip(root, other, strict=True):
            mine.merge(dump := [array.copy() for array in its.dump()])
            for array in dump:
                array[...] = 0
    assert bits(gathered(root, n)) == bits(of(made, names))


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_extremes_and_truth_are_those_of_numpy(dtype, data):
    """Values, indices, NaN and ties are as NumPy has them; a zero has no sign."""
    made = data.draw(products(dtype))
    found = of(made, [s for s in names_of(dtype) if s not in ("sum", "mean", "std", "prod")])
    for name, array in found.items():
        np.testing.assert_array_equal(array, getattr(made, name)(axis=0), strict=False)
        assert array.dtype == statistic_dtype(name, dtype)
        if array.dtype.kind == "f":
            assert not np.signbit(array[(array == 0) | np.isnan(array)]).any()


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_sums_and_means_agree(dtype, data):
    """The mean is the sum divided by the number of matrices; small integers are exact."""
    made = stack((data.draw(st.integers(1, 50)), 3), dtype, data.draw(st.integers(0, 9)))
    found = of(made, ["mean"])
    np.testing.assert_array_equal(found["sum"], made.sum(axis=0))
    np.testing.assert_array_equal(found["mean"].real, found["sum"].real / len(made))
    np.testing.assert_array_equal(found["mean"].imag, found["sum"].imag / len(made))


# The standard deviation.


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
@given(seed=st.integers(0, 2**32), n=st.integers(2, 300), offset=st.sampled_from([0, 1e8, -1e15]))
def test_an_offset_costs_no_digits(dtype, seed, n, offset):
    """Beside any offset the spread is right to the bound; integers far beyond 2⁵³ are, too."""
    if dtype == "int64":
        numbers = 2**62 + np.random.default_rng(seed).integers(-5, 6, n) + int(offset)
    else:
        numbers = noise((n, 1), dtype, seed)[:, 0] + np.array(offset, dtype)
    parts = [numbers.real, numbers.imag] if dtype == "complex128" else [numbers]
    expected = math.hypot(*(exact_std(part.tolist()) for part in parts))
    assert one("std", numbers, dtype) == pytest.approx(expected, rel=spread_bound(n) + ULP)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1 / 3] * 30, 0.0),
        ([1.0, math.nan], math.nan),
        ([math.inf, 1.0], math.nan),
        ([0.0, 2.0**479], 2.0**478),
        ([0.0, 2.0**480], math.inf),
        ([1.5e308, -1.5e308], math.inf),
        ([0, 2.0**1023, math.nan], math.nan),
    ],
)
@pytest.mark.parametrize("part", [1, 1j])
def test_spreads_at_the_limits(numbers, expected, part):
    """Squares of 2⁹⁶⁰ or more count as infinite; NaN and infinities have no spread."""
    made = np.array([v * part if math.isfinite(v) else v for v in numbers])
    assert one("std", made, made.dtype.name) == pytest.approx(expected, rel=ULP, nan_ok=True)


def test_opposite_integers_do_not_overflow():
    """A difference of 2⁶⁴ - 1 is taken in halves."""
    assert one("std", [2**63 - 1, -(2**63)], "int64") == 2.0**63


@pytest.mark.parametrize("far", [1e3, 1e16])
@pytest.mark.parametrize("n", [100, 10_000])
def test_an_outlier_as_the_first_product_stays_within_the_bound(far, n):
    """The worst origin: the first number lies far from all others."""
    numbers = 0.1 + noise((n, 1), seed=1)[:, 0] * 1e-3
    numbers[0] = far
    expected = exact_std(numbers.tolist())
    found = Fraction(float(one("std", numbers)))
    assert abs(found - expected) <= Fraction(spread_bound(n)) * expected


_WIDE = st.builds(
    math.ldexp,
    st.floats(-2, 2, exclude_min=True, exclude_max=True) | st.sampled_from([1.0, -1.0]),
    st.integers(470, 490) | st.integers(990, 1023),
) | st.sampled_from([0.0, 1.0, *(sign * np.finfo("float64").max for sign in (1, -1))])


@given(numbers=st.lists(_WIDE, min_size=1, max_size=12), part=st.sampled_from([1, 1j]))
def test_the_spread_of_finite_numbers_is_never_nan(numbers, part):
    """It is right, or infinite where a difference is 2⁴⁸⁰ or more, also beyond float64 itself."""
    made = np.array(numbers) * part
    found = one("std", made, made.dtype.name)
    if max(abs(Fraction(v) - Fraction(numbers[0])) for v in numbers) >= 2**480:
        assert found == math.inf
    else:
        expected = exact_std(numbers)
        bound = Fraction(spread_bound(len(numbers)))
        assert abs(Fraction(float(found)) - expected) <= bound * expected


# Products.


@pytest.mark.parametrize("n", [1, 7, 100])
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "complex128"])
def test_a_product_is_within_its_bound(dtype, n):
    """Products of N numbers are off by N roundings at most, against exact arithmetic."""
    made = noise((n, 3), dtype)
    found = of(made, ["prod"])["prod"]
    for column, value in zip(made.T, found, strict=True):
        real, imag = Fraction(1), Fraction(0)
        for v in column.tolist():
            a, b = Fraction(v.real), Fraction(v.imag)
            real, imag = real * a - imag * b, real * b + imag * a
        off = math.hypot(Fraction(value.real.item()) - real, Fraction(value.imag.item()) - imag)
        assert off <= math.sqrt(5) * n * ULP * math.hypot(real, imag)


@given(
    numbers=st.lists(st.sampled_from([-3, -2, -1, 1, 2, 7, 2**31, -(2**31)]), max_size=25)
    | st.sampled_from([[2**62, 2], [-(2**62), 2], [2**32 + 1, 2**31 - 1], [3037000500] * 2])
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    zero=st.booleans(),
)
def test_a_product_of_integers_is_exact_or_refused(numbers, zero):
    """What fits int64 is right to the last digit; what does not is refused, zeros included."""
    numbers = [*numbers, 0 if zero else 1]
    expected = functools.reduce(operator.mul, numbers)
    if -(2**63) <= expected < 2**63:
        assert one("prod", numbers, "int64") == expected
    else:
        with pytest.raises(InputError, match=r"prod: .* does not fit int64; save the input as"):
            one("prod", numbers, "int64")


def test_a_contiguous_run_keeps_few_nodes():
    """Memory grows with the logarithm of the number of matrices, not with their number."""
    product = statistics.accumulators(["prod"], 2, "float32", np.zeros(2))[0]
    for first in range(3, 1003, 5):
        product.add(Rows.of(np.ones((5, 2), "float32")), first)
        assert len(product.dump()) - 1 <= 2 * math.log2(1003)


# The factory.


@pytest.mark.parametrize("name", ["min", "argmax"])
def test_complex_numbers_have_no_extreme(name):
    """The accumulators refuse what the config should have refused."""
    with pytest.raises(ValueError, match="complex numbers have no order"):
        statistics.accumulators([name], 3, "complex64", np.zeros(3))
