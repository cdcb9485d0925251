"""Scalars over all elements: against NumPy, and the same bits on any ranks."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.numerics.scalars import Scalars

from tests.factories import noise, stack
from tests.unit.numerics.test_statistics import DTYPES, names_of, of


def summary(products, columns, names):
    """The scalars over all elements of products."""
    scalars = Scalars(len(products), columns)
    scalars.add(of(products, names), 0)
    return scalars.summary()


def described(values, columns):
    """The scalars of one product, of any float64 or int64 numbers."""
    scalars = Scalars(1, columns)
    first = np.zeros(len(values), np.int64)
    once = {"sum": values, "std": np.zeros(len(values)), "min": values, "max": values}
    scalars.add(once | {"argmin": first, "argmax": first}, 0)
    return scalars.summary()


def names_without_prod(dtype):
    """The other statistics that products of a dtype have: scalars know nothing of products."""
    return [name for name in names_of(dtype) if name != "prod"]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if "complex" not in d])
@given(seed=st.integers(0, 2**32), n=st.integers(1, 9), rows=st.integers(1, 4))
def test_scalars_are_those_of_the_whole_stack(dtype, seed, n, rows):
    """Count, sum, mean, std, extremes and places are NumPy's over all elements at once."""
    products = stack((n, rows * 3), dtype, seed)
    found = summary(products, 3, names_without_prod(dtype))
    wide = products.astype("float64")
    assert found["count"] == products.size
    assert found["sum"] == wide.sum()
    assert found["mean"] == wide.sum() / products.size
    assert found["std"] == pytest.approx(wide.std(), rel=1e-14, abs=1e-15)
    for name in ("min", "max"):
        assert found[name] == getattr(wide, name)()
        place = np.unravel_index(getattr(products, f"arg{name}")(), (n, rows, 3))
        assert tuple(found["where"][name].values()) == place
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["sum"], {"count", "sum", "mean"}),
        (["std"], {"count"}),
        (["std", "mean"], {"count", "sum", "mean", "std"}),
        (["max", "all"], {"count", "max", "where"}),
    ],
)
def test_only_what_the_statistics_give_is_told(names, keys):
    """What was not asked for is left out, not invented."""
    found = summary(noise((3, 4)), 2, names)
    assert set(found) == keys
    assert set(found.get("where", {})) == keys & {"min", "max"}


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_no_rank_and_no_order_changes_a_bit(dtype, data):
    """The stripes of a result, on any ranks and merged in any order, give the same summary."""
    width = data.draw(st.integers(1, 30))
    products = stack((4, width), dtype) if dtype == "int64" else noise((4, width), dtype) * 1e3
    products[0, : width // 2] = products[1, : width // 2]
    products = products.astype(dtype)
    given_ = of(products, names_without_prod(dtype))
    alone, ranks = Scalars(4, 5), [Scalars(4, 5) for _ in range(data.draw(st.integers(1, 3)))]
    cuts = sorted(data.draw(st.sets(st.integers(1, width), max_size=5)) | {0, width})
    stripes = list(itertools.pairwise(cuts))
    for low, high in data.draw(st.permutations(stripes)):
        part = {name: array[low:high] for name, array in given_.items()}
        data.draw(st.sampled_from(ranks)).add(part, low)
    for low, high in stripes:
        alone.add({name: array[low:high] for name, array in given_.items()}, low)
    root, *others = data.draw(st.permutations(ranks))
    for other in others:
        root.merge([array.copy() for array in other.dump()])
    assert root.summary() == alone.summary()
    whole = Scalars(4, 5)
    whole.add(given_, 0)
    for name, value in whole.summary().items():
        exact = name in ("count", "min", "max", "where")
        assert root.summary()[name] == (value if exact else pytest.approx(value, rel=1e-9))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_sums_and_spreads_stand_any_offset(dtype):
    """The spread is not lost beside a mean that is 10¹⁵ times as large; complex ones are pairs."""
    products = noise((20, 6), dtype)
    found = summary(products + 1e8, 3, ["std", "mean"])
    parts = [products.real, products.imag] if dtype == "complex128" else [products]
    sums = [part.sum() + (1e8 * part.size if i == 0 else 0) for i, part in enumerate(parts)]
    assert np.atleast_1d(found["sum"]) == pytest.approx(sums, rel=1e-13)
    assert found["std"] == pytest.approx(products.std(), rel=1e-7)
    assert described(1e15 + np.arange(1000) % 7, 10)["std"] == pytest.approx(
        np.std(np.arange(1000) % 7), rel=1e-14
    )


HUGE = 2**63
ONE_PRODUCT = [
    # Sums of integers may pass int64, as Python's whole numbers do.
    ([-HUGE] * 3, {"sum": -3 * HUGE, "std": 0.0}),
    ([-HUGE, HUGE - 1], {"sum": -1, "std": 2.0**63}),
    # JSON has no NaN and no infinities; as texts they survive every reader.
    ([1, math.inf], {"sum": "Infinity", "mean": "Infinity", "std": "NaN"}),
    ([1, -math.inf], {"sum": "-Infinity", "mean": "-Infinity", "std": "NaN"}),
    ([math.inf, -math.inf], {"sum": "NaN", "mean": "NaN", "std": "NaN"}),
    ([math.nan, 1], {"sum": "NaN", "mean": "NaN", "std": "NaN", "min": "NaN", "max": "NaN"}),
]


@pytest.mark.parametrize(("values", "expected"), ONE_PRODUCT)
def test_what_no_number_of_64_bits_holds_is_told(values, expected):
    """Over one product: large whole numbers exactly, what is not finite as a text."""
    found = described(np.array(values), 2)
    assert {name: found[name] for name in expected} == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("part", [1, 1j])
def test_a_spread_that_overflows_is_infinite(part):
    """As that of its element is; NaN in another element makes it NaN."""
    products = np.array([[0, 1], [1e300, 2]]) * part
    assert summary(products, 2, ["std", "mean"])["std"] == "Infinity"
    products[0, 1] = math.nan
    assert summary(products, 2, ["std", "mean"])["std"] == "NaN"


def test_the_first_of_equal_extremes_is_named():
    """No zero is negative; and NaN wins over any number, that of the lowest matrix and element."""
    equal = described(np.array([3.0, -0.0, 5.0, 0.0, 5.0, 4.0]), 3)
    assert equal["where"]["min"] == {"matrix": 0, "row": 0, "column": 1}
    assert equal["where"]["max"] == {"matrix": 0, "row": 0, "column": 2}
    assert math.copysign(1, equal["min"]) == 1
    products = noise((3, 4))
    products[1, 2] = products[1, 3] = products[2, 0] = math.nan
    found = summary(products, 2, ["min", "max"])
    assert found["where"]["min"] == found["where"]["max"] == {"matrix": 1, "row": 1, "column": 0}
