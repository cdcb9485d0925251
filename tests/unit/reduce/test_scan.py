"""Reading for the reduce; that rows and digests are right, test_reducer.py shows."""

import os

import pytest
from shardwise.errors import IntegrityError
from shardwise.files.npy import DATA_OFFSET
from shardwise.files.pieces import checksum_pieces
from shardwise.reduce.layout import Layout
from shardwise.reduce.scan import Scan


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """Cut while it is read: an error that names it, not the death of the process."""
    path = tmp_path / "0.npy"
    path.write_bytes(bytes(DATA_OFFSET + 8 * 600 * 600 * 8))
    layout = Layout([8], 360_000, 8, *checksum_pieces(360_000 * 8))
    batches = Scan(layout, lambda shard: path, "float64").read(layout.batches((0, 8), 2, 10**6), 2)
    next(batches)
    os.truncate(path, DATA_OFFSET)
    with pytest.raises(IntegrityError, match=r"0\.npy: became shorter"):
        list(batches)
