"""The arithmetic of the plan, against brute force."""

from hypothesis import given
from hypothesis import strategies as st
from shardwise.plan import cut


@given(st.integers(1, 400), st.data())
def test_every_matrix_is_in_exactly_one_shard(matrices, data):
    """The shards hold 0 … N-1 once each, in order, and their sizes differ by at most one."""
    shards = data.draw(st.integers(1, matrices))
    runs = cut.cut(matrices, shards)
    sizes = sorted(map(len, runs))
    assert [i for run in runs for i in run] == list(range(matrices))
    assert (len(runs), sizes[-1] - sizes[0] <= 1, sizes[0] >= 1) == (shards, True, True)


sizes = st.integers(1, 10**6)


@given(st.integers(1, 10**5), sizes, sizes, st.integers(0, 3000))
def test_auto_cuts_where_a_sum_is_few_nodes(matrices, matrix_bytes, shard_bytes, more):
    """Equal shards except the last hold each matrix once; growth adds no border inside them."""
    runs, grown = (
        cut.cut_aligned(n, matrix_bytes, shard_bytes) for n in (matrices, matrices + more)
    )
    size, most, starts = len(runs[0]), shard_bytes // matrix_bytes, [run.start for run in runs]
    assert starts == list(range(0, matrices, size))
    assert [run.stop for run in runs] == [*starts[1:], matrices]
    assert all(cut.count_nodes(run.start, run.stop) <= 3 for run in runs[:-1])
    if len(runs) > 1:
        assert 5 * size > 4 * most
        assert size <= max(1, most) or 2 * matrices > cut.MAX_AUTO_SHARDS * size
    assert len(runs) <= cut.MAX_AUTO_SHARDS
    assert {run.start for run in grown if run.start < matrices} <= set(starts)
