"""Reading for the reduce: right rows and digests, and an error where a file ends too early."""

import os

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.files import pieces as piecess
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.reduce.layout import Layout
from shardwise.reduce.scan import Scan


def write(folder, number, stack):
    """A file as a shard's; its path and checksum."""
    path = folder / f"{number}.npy"
    with commit(path) as file:
        writer = StackWriter(file, stack.shape, stack.dtype)
        writer.append(stack)
        return path, writer.checksum()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5, 7, 11), "int64"), ((23, 64, 64), "float32"), ((2, 300, 301), "complex128"),
     ((9, 1, 1), "float32")],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 5000, 10**7])
def test_every_row_comes_once_with_its_digest(tmp_path, monkeypatch, shape, dtype, batch):
    """Rows of several files, whole or in stripes: their numbers, and the files' checksums."""
    monkeypatch.setattr(piecess, "CHECKSUM_PIECE_BYTES", 4096)
    random = np.random.default_rng(1)
    stacks = [random.integers(0, 99, (shape[0] + i, *shape[1:])).astype(dtype) for i in range(3)]
    files = [write(tmp_path, i, stack) for i, stack in enumerate(stacks)]
    numbers, item = shape[1] * shape[2], np.dtype(dtype).itemsize
    rows = [len(stack) for stack in stacks]
    layout = Layout(rows, numbers, item, *piecess.checksum_pieces(numbers * item))
    scan = Scan(layout, lambda shard: files[shard][0], dtype)
    for stripe in range(layout.stripes):
        low, high = layout.bounds(stripe)
        batches = layout.batches((0, sum(rows)), stripe, batch)
        found = [read.copy() for _, read in scan.read(batches, stripe)]
        expected = np.concatenate([stack.reshape(len(stack), -1) for stack in stacks])
        np.testing.assert_array_equal(np.concatenate(found), expected[:, low:high])
    assert [row.tobytes().hex() for row in scan.digests] == [checksum for _, checksum in files]


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """Cut while it is read: an error that names it, not the death of the process."""
    stack = np.ones((8, 600, 600))
    path, _ = write(tmp_path, 0, stack)
    layout = Layout([8], 360_000, 8, *piecess.checksum_pieces(stack[0].nbytes))
    scan = Scan(layout, lambda shard: path, "float64")
    batches = scan.read(layout.batches((0, 8), 2, 10**6), 2)
    next(batches)
    os.truncate(path, 4096)
    with pytest.raises(IntegrityError, match=r"0\.npy: became shorter"):
        list(batches)
