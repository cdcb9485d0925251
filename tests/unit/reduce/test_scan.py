"""Reading for the reduce: right rows and digests, from the page cache or around it."""

import os
from concurrent.futures import Future
from itertools import cycle

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.files import direct
from shardwise.files import pieces as piecess
from shardwise.files.commit import commit
from shardwise.files.direct import ExtentReader
from shardwise.files.npy import StackWriter
from shardwise.reduce import scan
from shardwise.reduce.layout import Layout
from shardwise.reduce.scan import Scan

CASES = [
    ((5, 7, 11), "int64"),
    ((23, 64, 64), "float32"),
    ((2, 300, 301), "complex128"),
    ((9, 1, 1), "float32"),
]


@pytest.fixture(params=["copied", "read", "some of both"])
def cached(request, monkeypatch):
    """Whether files are copied from the page cache."""
    answers = {"copied": [True], "read": [False], "some of both": [True, True, False]}
    chosen = cycle(answers[request.param])
    monkeypatch.setattr(ExtentReader, "cached", lambda self, extent: next(chosen))
    return request.param


def write(folder, number, stack):
    """A file as a shard's; its path and checksum."""
    path = folder / f"{number}.npy"
    with commit(path) as file, StackWriter(file, stack.shape, stack.dtype) as writer:
        writer.append(stack)
        return path, writer.checksum()


@pytest.mark.parametrize(("shape", "dtype"), CASES)
@pytest.mark.parametrize("batch", [1, 5000, 10**7])
def test_every_row_comes_once_with_its_digest(tmp_path, monkeypatch, cached, shape, dtype, batch):
    """Rows of several files, whole or in stripes: their numbers, and the files' checksums."""
    monkeypatch.setattr(piecess, "CHECKSUM_PIECE_BYTES", 4096)
    random = np.random.default_rng(1)
    stacks = [random.integers(0, 99, (shape[0] + i, *shape[1:])).astype(dtype) for i in range(3)]
    files = [write(tmp_path, i, stack) for i, stack in enumerate(stacks)]
    numbers, item = shape[1] * shape[2], np.dtype(dtype).itemsize
    pieces = piecess.checksum_pieces(numbers * item)
    layout = Layout([len(stack) for stack in stacks], numbers, item, *pieces)
    batches = [
        made
        for stripe in range(layout.stripes)
        for made in layout.batches(stripe, [(0, layout.units)], batch)
    ]
    found = [np.full((len(stack), numbers), -1, dtype) for stack in stacks]
    digests = [0] * 3

    with Scan(layout, batches, lambda shard: files[shard][0], dtype) as reading:
        for batch_now in batches:
            assert reading.stripe == batch_now.stripe
            part = reading.take(Future.result)
            assert part.batch == batch_now
            row = batch_now.first
            for rows in part.rows:
                into = found[batch_now.shard][row : row + rows.n, batch_now.low : batch_now.high]
                assert (into == -1).all()
                into[:] = rows.array
                row += rows.n
            assert row == batch_now.last
            digests[batch_now.shard] ^= part.digest
            reading.give_back(part)
        assert reading.stripe is None
    for shard, stack in enumerate(stacks):
        np.testing.assert_array_equal(found[shard], stack.reshape(len(stack), -1))
        assert f"{digests[shard]:032x}" == files[shard][1]


@pytest.mark.parametrize("how", ["copied", "read"])
def test_a_file_that_becomes_shorter_is_an_error(tmp_path, monkeypatch, how):
    """Cut while it is read: an error that names it, not the death of the process."""
    monkeypatch.setattr(ExtentReader, "cached", lambda self, extent: how == "copied")
    stack = np.ones((8, 600, 600))
    path, _ = write(tmp_path, 0, stack)
    layout = Layout([8], 360_000, 8, *piecess.checksum_pieces(stack[0].nbytes))
    batches = list(layout.batches(2, [(0, 8)], 10**6))

    monkeypatch.setattr(scan, "AHEAD", 1)
    with Scan(layout, batches, lambda shard: path, stack.dtype) as reading:
        part = reading.take(Future.result)
        os.truncate(path, 4096)
        reading.give_back(part)
        with pytest.raises((OSError, IntegrityError)):
            reading.take(Future.result)


def test_memory_of_slabs_is_used_again(tmp_path, monkeypatch):
    """However many batches, no more slabs than are under way."""
    monkeypatch.setattr(ExtentReader, "cached", lambda self, extent: False)
    stack = np.arange(400 * 100, dtype="f4").reshape(400, 10, 10)
    path, _ = write(tmp_path, 0, stack)
    layout = Layout([400], 100, 4, 400, 400)
    batches = list(layout.batches(0, [(0, 400)], 1))
    made, original = [], direct.aligned_empty

    def aligned(size):
        made.append(size)
        return original(size)

    monkeypatch.setattr(direct, "aligned_empty", aligned)

    with Scan(layout, batches, lambda shard: path, stack.dtype) as reading:
        for _ in batches:
            reading.give_back(reading.take(Future.result))
    assert len(made) == scan.AHEAD < len(batches)
