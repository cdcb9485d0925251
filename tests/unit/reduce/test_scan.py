"""Reading for the reduce: right rows and digests, from the page cache or around it."""

import os
from collections import deque
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
        expected = deque(batches)
        while expected:
            assert reading.stripe == expected[0].stripe
            part = reading.take(Future.result)
            arrays = iter([row for rows in part.rows for row in rows.array])
            for now, digest in zip(part.batches, part.digests, strict=True):
                assert now == expected.popleft()
                digests[now.shard] ^= digest
                for row in range(now.first, now.last):
                    into = found[now.shard][row, now.low : now.high]
                    assert (into == -1).all()
                    into[:] = next(arrays)
            assert not list(arrays)
            reading.give_back(part)
        assert reading.stripe is None
    for shard, stack in enumerate(stacks):
        np.testing.assert_array_equal(found[shard], stack.reshape(len(stack), -1))
        assert f"{digests[shard]:032x}" == files[shard][1]


@pytest.mark.parametrize(("most", "nbytes"), [(3, 10**6), (99, 700)])
def test_small_files_are_read_together_where_they_follow_each_other(
    tmp_path, monkeypatch, cached, most, nbytes
):
    """So many at most, or so many bytes; what was read before breaks the row."""
    monkeypatch.setattr(scan, "_MOST_TOGETHER", most)
    monkeypatch.setattr(scan.memory, "REDUCE_BATCH_BYTES", nbytes)
    files = [write(tmp_path, i, np.full((2 + (i == 8), 5, 5), i, "f4"))[0] for i in range(11)]
    layout = Layout([3 if i == 8 else 2 for i in range(11)], 25, 4, 200, 200)
    batches = layout.batches(0, [(0, 4), (5, layout.units)], 10**6)
    parts = []
    with Scan(layout, batches, files.__getitem__, "f4") as reading:
        while reading.stripe is not None:
            part = reading.take(Future.result)
            parts.append([batch.shard for batch in part.batches])
            assert [row[0] for rows in part.rows for row in rows.array] == [
                shard for shard in parts[-1] for _ in range(layout.rows[shard])
            ]
            reading.give_back(part)
    assert parts == [[0, 1, 2], [3], [5, 6, 7], [8, 9, 10]]


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
