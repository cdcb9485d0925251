"""Sums by a fixed tree: the same bits however it is cut and merged, and how exact they are."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.numerics import loops
from shardwise.numerics.tree import TreeSum
from shardwise.plan import cut
from shardwise.plan.per_matrix import PerMatrix
from shardwise.plan.problem import sum_dtype

from tests import factories
from tests.factories import FLOATS

WIDTH = 5


def terms(dtype, n, seed, wild=False, width=WIDTH):
    """Numbers of many sizes; wild ones are any bits, so NaN, infinities and subnormals too."""
    random, shape = np.random.default_rng(seed), (n, width)
    if dtype == "int64":
        return random.integers(-(2**56), 2**56, shape)
    if wild:
        return np.ndarray(shape, dtype, random.bytes(n * width * np.dtype(dtype).itemsize))
    scales = 2.0 ** random.integers(-8, 8, shape)
    return (factories.noise(shape, dtype, seed) * scales).astype(dtype)


def defined(rows):
    """The sum by its definition: the largest node from the left, and then the rest."""
    if len(rows) == 1:
        return rows[0]
    left = 1 << (len(rows) - 1).bit_length() - 1
    return defined(rows[:left]) + defined(rows[left:])


def expected(rows):
    """The bytes of :func:`defined`, in the type of a sum."""
    with np.errstate(all="ignore"):
        return unsigned(defined(rows.astype(sum_dtype(rows.dtype.name))))


def unsigned(total):
    """The bytes of a sum; NaN without a sign."""
    if total.dtype.kind != "i":
        reals = total.view("float64")
        total = np.where(np.isnan(reals), np.nan, reals)
    return total.tobytes()


def cuts(data, low, high):
    """Runs that follow each other from low to high, in any order."""
    inner = data.draw(st.sets(st.integers(low, high), max_size=6))
    return data.draw(st.permutations(list(pairwise(sorted({low, high, *inner})))))


seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([*FLOATS, "int64"])


@given(dtypes, st.integers(1, 200), seeds, st.booleans(), st.booleans(), st.data())
def test_no_cut_batch_order_or_merge_changes_a_bit(dtype, n, seed, wild, weigh, data):
    """Shards in any order, their batches in any order, and their nodes merged in any order.

    Each product counts as it is, or times its weight.
    """
    rows = terms(dtype, n, seed, wild)
    weights = factories.noise((n,), "float64", seed) if weigh and dtype != "int64" else None
    whole = TreeSum(np, (WIDTH,), dtype)
    with np.errstate(all="ignore"):
        for start, stop in cuts(data, 0, n):
            shard = TreeSum(np, (WIDTH,), dtype, PerMatrix(weights))
            for low, high in cuts(data, start, stop):
                shard.add(rows[low:high], low)
            left = shard.nodes()
            assert [node for node, _ in left] == list(cut.cover(start, stop))
            assert len(left) == cut.count_nodes(start, stop)
            for node, array in data.draw(st.permutations(left)):
                whole.put(node, array)
        if weights is not None:  # re and im apart: complex products turn infinities into NaN
            reals = rows.view(rows.real.dtype).astype("float64") * weights[:, None]
            rows = reals.view(sum_dtype(dtype))
        assert whole.values()[0].tobytes() == expected(rows)


@pytest.mark.parametrize(("numbers", "fits"), [
    ([2**62, 2**62 - 1], True),
    ([2**62, 2**62], False),
    ([-(2**63), 0, 0, 1], True),
    ([-(2**62), -(2**62) - 1], False),
    ([2**62, 2**62, -(2**62)], False),  # a node of the tree does not fit, though the sum does
    ([2**62, -1, 2**62, 0, 1], False),
])  # fmt: skip
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_integers_are_exact_or_refused(numbers, fits, batch):
    """Wherever a node does not fit: in a batch, between batches, or in what is left at the end."""
    total = TreeSum(np, (1,), "int64")
    for low in range(0, len(numbers), batch):
        total.add(np.array(numbers[low : low + batch])[:, None], low)
    if fits:
        assert total.values()[0].tolist() == [sum(numbers)]
        return
    with pytest.raises(InputError, match="does not fit int64; save the input as float64"):
        total.values()
    total.reset()
    total.add(np.ones((1, 1), "int64"), 0)
    assert total.values()[0].tolist() == [1]


def test_products_that_are_missing_or_come_twice_are_refused():
    """A sum is of each product once."""
    total = TreeSum(np, (1,), "float64")
    total.add(np.ones((2, 1)), 2)
    with pytest.raises(ValueError, match="the products 0 to 1 are missing"):
        total.values()
    with pytest.raises(ValueError, match="was added twice"):
        total.add(np.ones((2, 1)), 2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("levels", [0, 1, 2, 5])
@pytest.mark.parametrize("width", [1, 513])
def test_loops_add_as_numpy_does(dtype, levels, width):
    """Compiled loops add large arrays, with the same bits."""
    rows = terms(dtype, 1 << levels, levels, True, width).copy()
    out = np.empty(width, sum_dtype(dtype))
    loops.fold(rows.view(rows.real.dtype), out.view("float64"))
    assert unsigned(out) == expected(rows)
