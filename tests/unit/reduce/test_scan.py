"""Reading for the reduce; test_reducer.py tests that rows and digests are right."""

import os

import pytest
from shardwise.errors import IntegrityError
from shardwise.files.npy import DATA_OFFSET
from shardwise.files.pieces import checksum_pieces
from shardwise.reduce.layout import Layout
from shardwise.reduce.scan import Scan


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
