"""Who reads what in the reduce: every number of every row exactly once."""

import os
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.files.npy import DATA_OFFSET
from shardwise.files.pieces import checksum_pieces
from shardwise.reduce.layout import Layout, Rows, Scan


@st.composite
def layouts(draw):
    """A layout with small pieces, cut by the rule for real files."""
    rows = draw(st.lists(st.integers(1, 300), min_size=1, max_size=6))
    item, piece = draw(st.sampled_from([2, 4, 8, 16])), draw(st.sampled_from([16, 32, 64, 128]))
    numbers = draw(st.integers(1, 40))
    row = numbers * item
    unit = max(1, piece // row) * row
    return Layout(rows, numbers, item, unit, piece if row > piece else unit)


@given(layouts(), st.integers(1, 7), st.integers(1, 500))
def test_every_row_is_read_by_one_rank(made, ranks, most):
    """Ranks share the rows of a stripe in whole units, in bounded batches, each row once."""
    pieces = []
    for stripe in range(made.stripes):
        low, high = made.bounds(stripe)
        seen = []
        for rank in range(ranks):
            for shard, first, last in made.batches(made.share(rank, ranks), stripe, most):
                nbytes = (last - first) * (high - low) * made.item
                assert nbytes <= most or last - first <= made.unit_rows
                assert first % made.unit_rows == 0
                seen += [(shard, row) for row in range(first, last)]
                own = made.pieces(Rows(shard, first, last), stripe)
                pieces += [(shard, *piece) for piece in own]
        assert seen == [(i, row) for i, rows in enumerate(made.rows) for row in range(rows)]
    for shard, rows in enumerate(made.rows):  # the pieces cover the file, in its order
        numbers, begins, sizes = zip(*sorted(p[1:] for p in pieces if p[0] == shard), strict=True)
        assert numbers == tuple(range(len(numbers)))
        ends = list(accumulate(sizes))
        assert (list(begins), ends[-1]) == ([0, *ends[:-1]], rows * made.numbers * made.item)


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_shares_are_about_equal_and_cut_few_nodes(total, ranks):
    """A border moves by a sixteenth of a share at most, to a multiple of a power of two."""
    made = Layout([total], 1, 8, 8, 8)
    for rank in range(ranks):
        first, last = made.share(rank, ranks)
        assert last - first <= total / ranks * (1 + 1 / 16) + 1
        assert first % (1 << max(0, (total // (ranks * 16)).bit_length() - 1)) == 0


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """A file that is cut while it is read ends in an error that names it, not in SIGBUS."""
    path = tmp_path / "0.npy"
    path.write_bytes(bytes(DATA_OFFSET + 8 * 600 * 600 * 8))
    layout = Layout([8], 360_000, 8, *checksum_pieces(360_000 * 8))
    batches = Scan(layout, lambda shard: path, "float64").read(layout.batches((0, 8), 2, 10**6), 2)
    next(batches)
    os.truncate(path, DATA_OFFSET)
    with pytest.raises(IntegrityError, match=r"0\.npy: became shorter"):
        list(batches)
