"""Statistics over all products: what they are, and that no cut and no order changes a bit."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files.paths import STATISTICS
from shardwise.numerics import statistics
from shardwise.plan.problem import NEEDS_ORDER, statistic_dtype

from tests.factories import FLOATS, noise, stack

DTYPES = (*FLOATS, "int64")


def names_of(dtype):
    """The statistics that products of a dtype have."""
    return [s for s in STATISTICS if "complex" not in dtype or s not in NEEDS_ORDER]


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


def one(name, numbers, dtype="float64"):
    """One statistic of products of one element."""
    return of(np.array(numbers, dtype).reshape(-1, 1), [name])[name][0]


@st.composite
def products(draw, dtype):
    """Products ``(N, width)`` with zeros of both signs, ties, and at times NaN and infinities."""
    n, width = draw(st.integers(1, 70)), draw(st.integers(1, 5))
    shape, seed = (n, width), draw(st.integers(0, 2**32))
    if draw(st.booleans()):
        made = stack(shape, dtype, seed)
    elif dtype == "int64":
        made = np.random.default_rng(seed).integers(-(2**30), 2**30, shape)
    else:
        made = noise(shape, dtype, seed)
    if dtype != "int64":
        made[(made == 0) & (np.random.default_rng(seed).random(shape) < 0.5)] *= -1
        for value in draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=3)):
            made[draw(st.integers(0, n - 1)), draw(st.integers(0, width - 1))] = value
    return made.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_no_cut_and_no_rank_changes_a_bit(dtype, data):
    """Runs in any order, on ranks that are merged in any order: the same bytes."""
    made = data.draw(products(dtype))
    names, (n, width) = names_of(dtype), made.shape
    cuts = sorted(data.draw(st.sets(st.integers(0, n), max_size=6)) | {0, n})
    runs = data.draw(st.permutations(list(pairwise(cuts))))
    ranks = [statistics.choose(names, width, dtype) for _ in range(data.draw(st.integers(1, 3)))]
    with np.errstate(all="ignore"):
        for low, high in runs:
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
    terms = [Fraction(value) for value in shifted.tolist()]
    mean = sum(terms) / len(terms)
    exact = math.sqrt(sum((v - mean) ** 2 for v in terms) / len(terms))
    assert one("std", shifted) == pytest.approx(exact, rel=1e-12, abs=1e-15 * (1 + abs(offset)))


def test_equal_products_have_no_spread():
    """Exactly 0, however large they are."""
    assert one("std", [1e200 / 3] * 5) == 0


def test_zeros_and_nan_have_no_sign():
    """Whichever zero came first, and whatever the sign of a NaN in the input."""
    for numbers in ([0.0, -0.0], [-0.0, 0.0]):
        assert math.copysign(1, one("min", numbers)) == math.copysign(1, one("max", numbers)) == 1
    for name in ("sum", "min", "max"):
        found = of(np.array([[-math.nan], [1.0]]), [name])[name]
        assert found.view("u8")[0] >> 63 == 0
        assert np.isnan(found[0])
