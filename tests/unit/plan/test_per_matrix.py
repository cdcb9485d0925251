"""Weights of matrices: what they do to sums, keys and plans."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.plan import planner

from tests import factories
from tests.factories import FLOATS, flip, listed, multiplied, noise, reduced, save, wide
from tests.unit.numerics.test_tree import defined

KEEPS = ("products", "sum")


def weighted(folder, left, weights, **over):
    """A plan of matrices with weights."""
    return factories.plan(folder, left, weights=str(save(folder / "w.npy", weights)), **over)


@given(st.sampled_from(FLOATS), st.integers(1, 12), st.data())
def test_a_sum_is_that_of_weight_times_product(tmp_path_factory, dtype, n, data):
    """To the bit, for any cut, both keeps, copied or in place; a matrix of weight 0 may be NaN."""
    folder, left = tmp_path_factory.mktemp("a"), noise((n, 3, 3), dtype, n)
    numbers = st.lists(st.sampled_from([0, 0.1, -3, 1e5]), min_size=n, max_size=n)
    weights = np.array(data.draw(numbers))
    left[weights == 0] = np.nan
    keep, names = data.draw(st.sampled_from(KEEPS)), ["sum", "mean"][: 1 + bool(weights.sum())]
    over = {"shards": data.draw(st.integers(1, n)), "materialize": data.draw(st.booleans())}
    made = listed(weighted(folder, left, weights, keep=keep, **over))
    total, own = reduced(made, *names), wide(multiplied(made, np.nan_to_num(left)))
    expected = defined(weights[:, None, None] * own)
    np.testing.assert_array_equal(total, expected)
    if "mean" in names:
        mean = np.load(made.results.statistic("mean")).view("float64")
        np.testing.assert_array_equal(mean, expected.view("float64") / math.fsum(weights))
    if keep == "products":
        assert not factories.products(made)[weights == 0].any()


@pytest.mark.parametrize("keep", KEEPS)
def test_other_weights_compute_the_shards_that_they_touch(tmp_path, keep):
    """And adopt nothing of others; the same weights in another file change nothing."""
    left, weights, others = noise((6, 3, 3)), np.arange(6.0), np.array([0, 1, 2, 4, 4, 5.0])
    over = {"shards": 3, "keep": keep, "materialize": False}
    made = listed(weighted(tmp_path, left, weights, **over))
    over["input"] = str(tmp_path / "input.npy")
    assert weighted(tmp_path, None, weights.astype("int8"), **over).shards == made.shards
    other = listed(weighted(tmp_path, None, others, **over))
    before, after = ([row.key for row in each.shards.values()] for each in (made, other))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert factories.receipt(other, "00001").adopted is None
    np.testing.assert_allclose(reduced(other), np.tensordot(others, left @ left, 1))


def test_a_plan_keeps_the_weights_it_was_made_with(tmp_path):
    """The user's file may go; a damaged copy is refused."""
    made = weighted(tmp_path, noise((4, 3, 3)), np.arange(4) % 2 == 1, shards=2)
    (tmp_path / "w.npy").unlink()
    assert planner.read_planned(made.results.plan).per_matrix.total_weight == 2
    flip(made.results.weights)
    with pytest.raises(IntegrityError, match=r"weights.npy does not match its plan.json"):
        planner.read_planned(made.results.plan)
