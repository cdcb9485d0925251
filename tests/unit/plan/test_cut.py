"""The arithmetic of the plan, against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.plan import cut, memory
from shardwise.plan.problem import LEVELS, Problem

# Distinct primes: a lost or swapped dimension changes every count.
M, K, P, N = 3, 5, 7, 11
ITEM = {"float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "int8": 1}
PRODUCT_ITEM = {**ITEM, "int8": 8}
SUM_ITEM = {
    **{"float16": 8, "float32": 8, "float64": 8},
    **{"complex64": 16, "complex128": 16, "int8": 8},
}
FACTORS = {"A @ A": (K, K, K), "A.T @ A": (K, M, K), "A @ A.T": (M, K, M), "A @ B": (M, K, P)}


def problem(product, dtype="float32", shared=False, matrices=N):
    """A problem of prime dimensions."""
    left = (K, K) if product == "A @ A" else (M, K)
    right = (K, P) if product == "A @ B" else None
    return Problem(matrices, left, product, dtype, right, shared)


@given(st.integers(1, 400), st.data())
def test_every_matrix_is_in_exactly_one_shard(matrices, data):
    """The shards hold 0 … N-1 once each, in order, and their sizes differ by at most one."""
    shards = data.draw(st.integers(1, matrices))
    runs = cut.cut(matrices, shards)
    held = [i for start, stop in runs for i in range(start, stop)]
    sizes = {stop - start for start, stop in runs}
    assert held == list(range(matrices))
    assert len(runs) == shards
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(("matrices", "shards"), [(5, 6), (5, 0), (5, -1), (1, 2)])
def test_impossible_cuts_are_refused(matrices, shards):
    """No shard is empty, and there is at least one."""
    with pytest.raises(ValueError, match=f"cannot cut {matrices} matrices into {shards}"):
        cut.cut(matrices, shards)


@given(st.integers(1, 5000), st.integers(1, 10**6), st.integers(1, 10**9))
def test_auto_makes_the_fewest_shards_that_fit(matrices, matrix_bytes, shard_bytes):
    """Under auto the count is the least with total/count within shard_bytes, up to the limits."""
    total = matrices * matrix_bytes
    shards = cut.shard_count(matrices, total, "auto", shard_bytes)
    limit = min(matrices, cut.MAX_AUTO_SHARDS)
    assert 1 <= shards <= limit
    assert shards * shard_bytes >= total or shards == limit
    assert shards == 1 or (shards - 1) * shard_bytes < total


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [(1, "00000", "00000"), (1000, "00000", "00999"), (1001, "0000000", "0001000")],
)
def test_ids_are_zero_padded_decimals(count, first, last):
    """Ids have five digits, or seven where there are more than 1,000, and sort like numbers."""
    ids = cut.shard_ids(count)
    assert (ids[0], ids[-1], len(ids)) == (first, last, count)
    assert ids == sorted(ids)


@pytest.mark.parametrize("product", FACTORS)
@pytest.mark.parametrize("dtype", ITEM)
@pytest.mark.parametrize("keep", ["products", "sum"])
def test_the_table_counts_every_byte(product, dtype, keep):
    """Rows add up to the whole input and, for products, to the whole output."""
    own = problem(product, dtype)
    rows = cut.table(own, 4, keep, cuda=False)
    m, _, p = FACTORS[product]
    whole = sum(own.left[0] * own.left[1] * ITEM[dtype] for _ in range(N))
    assert sum(row.bytes for row in rows) == whole
    made = [row.product_bytes for row in rows]
    if keep == "sum":
        words = 6 if dtype == "int8" else 1 + 3 * LEVELS[dtype]  # of 16 bits, for 8 of a sum
        assert made == [words * m * p * SUM_ITEM[dtype] // 4] * 4
    else:
        assert made == [(row.stop - row.start) * m * p * PRODUCT_ITEM[dtype] for row in rows]
    for cuda in (False, True):
        for row in cut.table(own, 4, keep, cuda):
            count = row.stop - row.start
            assert row.memory == memory.task_memory(own, count, keep, cuda)
            asked = memory.device_memory(own, count, keep) if cuda else 0
            assert row.device_memory == asked
