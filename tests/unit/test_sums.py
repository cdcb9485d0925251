"""Sums: exact where they can be, and the same bits however the work is cut."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.reduce import part_of
from shardwise.sums import RunningSum

from tests.factories import noise, stack

INT64 = st.integers(-(2**63), 2**63 - 1)


def summed(arrays, dtype, cuts=()):
    """The sum of a stack, added in blocks that end at the cuts."""
    total = RunningSum(arrays.shape[1:], dtype)
    for block in np.split(arrays, sorted(cuts)):
        total.add(block)
    return total.total()


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20))
def test_floats_are_added_one_after_the_other(numbers):
    """The sum is that of a plain loop, to the bit."""
    expected = 0.0
    for number in numbers:
        expected += number
    with np.errstate(over="ignore"):
        found = summed(np.array(numbers)[:, np.newaxis], "float64")
    assert found.tobytes() == np.array([expected]).tobytes()


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=30))
def test_small_integers_as_floats_are_exact(numbers):
    """Sums that fit 53 bits are those of exact arithmetic."""
    found = summed(np.array(numbers, "float64")[:, np.newaxis], "float64")
    assert Fraction(found[0]) == sum(map(Fraction, numbers))


def test_rounding_is_bounded():
    """The error against the exact sum is within (n - 1) u times the sum of moduli."""
    numbers = noise((5000, 1)) * 10.0 ** np.arange(5000)[:, np.newaxis].astype(int).__mod__(9)
    found = summed(numbers, "float64")[0]
    gap = abs(Fraction(float(found)) - sum(Fraction(float(x)) for x in numbers[:, 0]))
    bound = 5000 * 2.0**-53 * math.fsum(abs(numbers[:, 0]))
    assert gap <= Fraction(bound)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        ("float16", "float64"),
        ("float32", "float64"),
        ("float64", "float64"),
        ("complex64", "complex128"),
        ("complex128", "complex128"),
    ],
)
@given(data=st.data())
def test_grouping_and_splitting_change_no_bit(dtype, wide, data):
    """Any blocks, and any split of the elements over ranks, give the same bits."""
    arrays = noise((12, 7), dtype, data.draw(st.integers(0, 99)))
    expected = summed(arrays, wide)
    cuts = data.draw(st.lists(st.integers(0, 12), max_size=6))
    assert summed(arrays, wide, cuts).tobytes() == expected.tobytes()
    ranks = data.draw(st.integers(1, 9))
    bounds = [part_of(7, rank, ranks) for rank in range(ranks)]
    parts = [summed(arrays[:, low:high], wide, cuts) for low, high in bounds]
    assert np.concatenate(parts).tobytes() == expected.tobytes()


@given(st.integers(0, 200), st.integers(1, 50))
def test_ranks_hold_every_element_once(size, ranks):
    """Parts follow each other without a gap, evenly."""
    bounds = [part_of(size, rank, ranks) for rank in range(ranks)]
    assert [i for low, high in bounds for i in range(low, high)] == list(range(size))
    lengths = [high - low for low, high in bounds]
    assert max(lengths) - min(lengths) <= 1


@given(st.lists(INT64, min_size=1, max_size=20), st.randoms())
def test_integers_are_exact_in_any_order(numbers, random):
    """int64 sums are Python's, or refused; intermediate overflow does no harm."""
    random.shuffle(numbers)
    arrays = np.array(numbers, "int64")[:, np.newaxis]
    expected = sum(numbers)
    if -(2**63) <= expected < 2**63:
        found = summed(arrays, "int64")
        assert found.dtype == np.int64
        assert int(found[0]) == expected
    else:
        with pytest.raises(InputError, match="does not fit int64; save the input as float64"):
            summed(arrays, "int64")


@pytest.mark.parametrize(
    ("numbers", "fits"),
    [
        ([2**63 - 1], True),
        ([2**63 - 1, 1], False),
        ([2**63 - 1, 1, -1], True),
        ([-(2**63)], True),
        ([-(2**63), -1], False),
        ([-(2**63), -1, 1], True),
        ([2**63 - 1] * 1000 + [-(2**63)] * 999 + [-(2**63 - 1) + 999 + 5], True),
        ([2**62, 2**62], False),
        ([2**62, 2**62 - 1], True),
        ([0xFFFFFFFF] * 5, True),
    ],
)
def test_the_edge_of_int64(numbers, fits):
    """The largest and the least number fit, and not one more; what goes past may come back."""
    arrays = np.array(numbers, "int64")[:, np.newaxis]
    assert (-(2**63) <= sum(numbers) < 2**63) == fits
    if fits:
        assert int(summed(arrays, "int64")[0]) == sum(numbers)
    else:
        with pytest.raises(InputError, match="does not fit int64"):
            summed(arrays, "int64")


def test_one_element_that_overflows_is_enough():
    """A sum is refused if any of its elements does not fit."""
    arrays = np.zeros((2, 3), "int64")
    arrays[:, 1] = 2**62
    with pytest.raises(InputError):
        summed(arrays, "int64")


def test_asking_twice_gives_the_same():
    """total() changes nothing, and more can be added after it."""
    total = RunningSum((2,), "int64")
    total.add(np.array([[2**40, -3]]))
    assert total.total().tolist() == total.total().tolist() == [2**40, -3]
    total.add(np.array([[1, 1]]))
    assert total.total().tolist() == [2**40 + 1, -2]


def test_nothing_sums_to_zero():
    """No arrays, and no elements, are no error."""
    assert RunningSum((2,), "float64").total().tolist() == [0, 0]
    assert RunningSum((0,), "int64").total().shape == (0,)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_nan_and_inf_stay_visible(dtype):
    """A NaN anywhere is a NaN in the sum."""
    arrays = stack((4, 3), dtype)
    arrays[2, 1] = np.nan
    assert np.isnan(summed(arrays, dtype)).tolist() == [False, True, False]
