"""Who reads what in the reduce: every number of every row exactly once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files import pieces
from shardwise.reduce import layout as layouts
from shardwise.reduce.layout import Layout

ROWS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def layout(rows, numbers, item, piece, planes):
    """A layout whose pieces are small, by the rule that gives those of real files."""
    row = numbers * item
    if row <= piece:
        each = max(1, piece // row) * row
        return Layout(rows, numbers, item, each, each, planes)
    return Layout(rows, numbers, item, row, piece, planes)


LAYOUTS = st.builds(
    layout,
    ROWS,
    st.integers(1, 40),
    st.sampled_from([2, 4, 8, 16]),
    st.sampled_from([16, 32, 64, 128]),
    st.booleans(),
)


@given(LAYOUTS, st.integers(1, 7), st.integers(1, 500), st.data())
def test_every_number_is_read_by_one_rank(made, ranks, most, data):
    """Whatever an earlier reduce has left, the ranks share the rest, each number once."""
    done = {}
    for stripe in range(made.stripes):
        cuts = data.draw(st.lists(st.integers(0, made.units), max_size=4).map(sorted))
        runs = zip(cuts[::2], cuts[1::2], strict=False)
        done[stripe] = [(low, high) for low, high in runs if low < high]
    seen, lengths = {}, {stripe: [] for stripe in done}
    count = layouts.teams(made.stripes, ranks)
    assert ranks % count == 0
    members = ranks // count
    for rank in range(ranks):
        own, place = divmod(rank, members)
        for stripe in range(*layouts.share(made.stripes, own, count)):
            left = layouts.remaining(made.units, done[stripe])
            runs = layouts.portion(left, place, members)
            lengths[stripe].append(sum(b - a for a, b in runs))
            for batch in made.batches(stripe, runs, most):
                assert (batch.low, batch.high) == made.bounds(stripe)
                for row in range(batch.first, batch.last):
                    key = (batch.shard, row, stripe)
                    assert key not in seen
                    seen[key] = made.units_of(batch)
    assert all(max(each) - min(each) <= 1 for each in lengths.values())
    everything = {
        (shard, row, stripe)
        for shard, rows in enumerate(made.rows)
        for row in range(rows)
        for stripe in range(made.stripes)
    }
    read_before = {
        (batch.shard, row, stripe)
        for stripe, runs in done.items()
        for batch in made.batches(stripe, runs, 10**9)
        for row in range(batch.first, batch.last)
    }
    assert set(seen) == everything - read_before


@given(LAYOUTS, st.integers(1, 300))
def test_batches_are_whole_units_and_bounded(made, most):
    """A batch is a run of units of one shard, of so many bytes at most, or one unit."""
    for stripe in range(made.stripes):
        at = 0
        for batch in made.batches(stripe, [(0, made.units)], most):
            first, last = made.units_of(batch)
            assert first == at
            at = last
            nbytes = (batch.last - batch.first) * (batch.high - batch.low) * made.item
            assert nbytes <= most or last - first == 1
            if made.planes:
                assert (batch.first, batch.last) == (0, made.rows[batch.shard])
        assert at == made.units


@pytest.mark.parametrize(
    ("stripes", "ranks", "count"),
    [(1, 4, 1), (64, 2, 2), (64, 4, 4), (3, 2, 1), (4, 2, 2), (1000, 7, 7), (0, 3, 1)],
)
def test_long_results_are_shared_by_elements(stripes, ranks, count):
    """Many stripes: each rank has its own. Few: all ranks share the rows of each."""
    assert layouts.teams(stripes, ranks) == count


def test_stripes_are_pieces_of_the_checksum():
    """A long row is cut where its checksum is, at whole numbers; a short one is not cut."""
    for elements, item in ((4096 * 4096, 4), (5000 * 4999, 8), (700 * 700, 16), (64, 2)):
        made = Layout([3], elements, item, *pieces.checksum_pieces(elements * item))
        bounds = [made.bounds(stripe) for stripe in range(made.stripes)]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == elements
        for (_, end), (begin, _) in pairwise(bounds):
            assert end == begin
            assert begin * item % pieces.CHECKSUM_PIECE_BYTES == 0
