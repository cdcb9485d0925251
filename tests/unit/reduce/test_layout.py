"""Who reads what in the reduce; that each number is read once, test_reducer.py shows by sums."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.files.npy import DATA_OFFSET
from shardwise.reduce.layout import Scan


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_shares_are_about_equal_and_cut_few_nodes(total, ranks):
    """A border moves by a sixteenth of a share at most, to a multiple of a power of two."""
    made = Scan([total], 2**17, "float64", lambda shard: None)  # a row is a piece
    for rank in range(ranks):
        first, last = made.share(rank, ranks)
        assert last - first <= total / ranks * (1 + 1 / 16) + 1
        assert first % (1 << max(0, (total // (ranks * 16)).bit_length() - 1)) == 0


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """A file that is cut while it is read ends in an error that names it, not in SIGBUS."""
    path = tmp_path / "0.npy"
    path.write_bytes(bytes(DATA_OFFSET + 8 * 600 * 600 * 8))
    batches = Scan([8], 360_000, "float64", lambda shard: path).read((0, 8), 2)
    next(batches)
    os.truncate(path, DATA_OFFSET)
    with pytest.raises(IntegrityError, match=r"0\.npy: became shorter"):
        list(batches)
