"""Statistics over all products: what they are, and that no cut and no order changes a bit."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files.paths import STATISTICS
from shardwise.numerics import statistics
from shardwise.plan.problem import statistic_dtype

from tests.factories import FLOATS, stack
from tests.unit.numerics.test_tree import WIDTH, cuts, seeds, terms

DTYPES = (*FLOATS, "int64")


def names_of(dtype):
    """The statistics that products of a dtype have."""
    return [s for s in STATISTICS if "complex" not in dtype or s not in ("min", "max")]


def gathered(own, matrices):
    """The results of some statistics, by name."""
    return {name: array for one in own for name, array in one.results(matrices).items()}


def of(products, names=None):
    """The statistics of products ``(N, width)``, added in one run."""
    dtype = products.dtype.name
    own = statistics.choose(names or names_of(dtype), products.shape[1], dtype)
    for one in own:
        one.add(products, 0)
    return gathered(own, len(products))


def one(name, numbers):
    """One statistic of products of one element."""
    return of(np.array(numbers, "float64").reshape(-1, 1), [name])[name][0]


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.integers(1, 70), seeds, st.booleans(), st.data())
def test_no_cut_and_no_rank_changes_a_bit(dtype, n, seed, wild, data):
    """Runs in any order, on ranks that are merged in any order: the same bytes."""
    made, names = terms(dtype, n, seed, wild), names_of(dtype)
    ranks = [statistics.choose(names, WIDTH, dtype) for _ in range(data.draw(st.integers(1, 3)))]
    with np.errstate(all="ignore"):
        for low, high in cuts(data, 0, n):
            for each in data.draw(st.sampled_from(ranks)):
                each.add(made[low:high], low)
        first, *others = data.draw(st.permutations(ranks))
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                for key, array in theirs.nodes():
                    mine.put(key, array.copy())
        found, expected = gathered(first, n), of(made)
    assert found.keys() == set(names)
    for name in names:
        assert found[name].dtype == statistic_dtype(name, dtype)
        assert found[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_those_of_numpy(dtype):
    """Sum, minimum and maximum of small whole numbers exactly, mean and std up to rounding."""
    made = stack((37, 6), dtype)
    found, wide = of(made), made.astype(statistic_dtype("mean", dtype))
    np.testing.assert_array_equal(found["sum"], made.sum(axis=0, dtype=found["sum"].dtype))
    np.testing.assert_allclose(found["mean"], wide.sum(axis=0) / 37, rtol=1e-15)
    np.testing.assert_allclose(found["std"], wide.std(axis=0), rtol=1e-13)
    for name in found.keys() & {"min", "max"}:
        np.testing.assert_array_equal(found[name], getattr(made, name)(axis=0))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.sampled_from([0, 1e3, 1e8]))
def test_a_spread_survives_an_offset(numbers, offset):
    """Far from zero, precision is limited by the digits of the numbers, not of their squares."""
    shifted = np.array(numbers) + offset
    exactly = [Fraction(value) for value in shifted.tolist()]
    mean = sum(exactly) / len(exactly)
    exact = math.sqrt(sum((v - mean) ** 2 for v in exactly) / len(exactly))
    assert one("std", shifted) == pytest.approx(exact, rel=1e-12, abs=1e-15 * (1 + abs(offset)))


@pytest.mark.parametrize("name", STATISTICS)
def test_zeros_and_nan_have_no_sign(name):
    """Whichever zero came first, and whatever the sign of a NaN in the input."""
    for numbers in ([0.0, -0.0], [-0.0, 0.0], [-math.nan, 1.0]):
        found = one(name, numbers)
        assert math.copysign(1, found) == 1
        assert np.isnan(found) == np.isnan(numbers[0])
