"""The arithmetic of the plan, against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.plan import cut, memory
from shardwise.plan.problem import Problem

# Distinct primes: a lost or swapped dimension changes every count.
M, K, P, N = 3, 5, 7, 11


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


@given(st.integers(1, 5000), st.integers(1, 10**6), st.integers(1, 10**9))
def test_auto_makes_the_fewest_shards_that_fit(matrices, matrix_bytes, shard_bytes):
    """Under auto the count is the least with total/count within shard_bytes, up to the limits."""
    total = matrices * matrix_bytes
    shards = cut.shard_count(matrices, total, "auto", shard_bytes)
    limit = min(matrices, cut.MAX_AUTO_SHARDS)
    assert 1 <= shards <= limit
    assert shards * shard_bytes >= total or shards == limit
    assert shards == 1 or (shards - 1) * shard_bytes < total


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("cuda", [False, True])
def test_the_table_counts_every_byte(keep, cuda):
    """Rows add up to the whole input, and say what each shard takes and leaves."""
    own = Problem(N, (M, K), "A @ B", "float32", (K, P))
    rows = cut.table(own, 4, keep, cuda)
    assert sum(row.bytes for row in rows) == N * M * K * 4
    for row in rows:
        count = row.stop - row.start
        assert row.product_bytes == memory.result_bytes(own, count, keep)
        assert row.memory == memory.task_memory(own, count, keep, cuda)
        assert row.device_memory == (memory.device_memory(own, count, keep) if cuda else 0)
