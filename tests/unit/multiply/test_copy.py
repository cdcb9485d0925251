"""The copy of a shard: the same bytes, a checksum that multiply agrees with, and nothing half."""

import os
import subprocess
import sys

import numpy as np
import pytest
from shardwise.errors import IntegrityError, TryAgain
from shardwise.files import commit, direct
from shardwise.files import pieces as piecess
from shardwise.files.checksum import file_checksum
from shardwise.files.npy import read_header
from shardwise.multiply import copy
from shardwise.plan import memory
from shardwise.records import receipts

from tests import factories
from tests.factories import leftovers, noise, save, stack


@pytest.fixture(params=["slabs of odd sizes", "slabs as they are"])
def slabs(request, monkeypatch):
    """Slabs that begin and end inside matrices, long enough for direct I/O, and the real ones."""
    if request.param == "slabs of odd sizes":
        monkeypatch.setattr(piecess, "SLAB_BYTES", 5 * 130 * 200 * 8 + 12_347)


def copies(made):
    """What the shards of a plan hold, one after the other, checked with their receipts."""
    parts = []
    for shard_id in made.shards:
        copy.materialize(made, shard_id)
        path, facts = (
            made.results.shard(shard_id),
            receipts.read(made.results.shard_receipt(shard_id), receipts.CopyReceipt).file,
        )
        receipts.check_file(path, facts)
        assert read_header(path).offset == 4096
        pieces = facts.row_bytes, facts.piece_bytes
        assert pieces == memory.SHARD_PIECES
        assert facts.checksum == file_checksum(path, 4096, *pieces)
        parts.append(np.load(path))
    assert leftovers(made.results.root) == []
    return np.concatenate(parts)


@pytest.mark.parametrize("dim", [20, 400])
def test_a_folder(tmp_path, slabs, dim):
    """Many files, short or long, become one."""
    arrays = [noise((dim, dim), seed=i) for i in range(13)]
    for i, array in enumerate(arrays):
        save(tmp_path / "in" / f"{i:02}.npy", array)
    made = factories.plan(tmp_path, input=str(tmp_path / "in"), shards=2)
    np.testing.assert_array_equal(copies(made), np.stack(arrays))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", ">c16", "<i1"])
def test_any_order(tmp_path, slabs, dtype, order):
    """The copy is little-endian and in C order, whatever the input is."""
    array = np.asarray(stack((23, 30, 20), "float64").astype(dtype), order=order)
    made = factories.plan(tmp_path, array, product="A @ A.T", shards=2)
    np.testing.assert_array_equal(copies(made), array)
    header = read_header(made.results.shard("00000"))
    assert header.little_endian
    assert not header.fortran


@pytest.mark.parametrize("order", ["C", "F"])
def test_matrices_larger_than_a_slab(tmp_path, monkeypatch, order):
    """A slab is then a piece of a matrix, also where the matrix has to be converted."""
    monkeypatch.setattr(piecess, "SLAB_BYTES", 20_011)
    array = np.asarray(noise((5, 100, 100)), order=order)
    np.testing.assert_array_equal(copies(factories.plan(tmp_path, array, shards=2)), array)


def test_an_input_that_is_cut_short_under_way_leaves_nothing(tmp_path, monkeypatch):
    """All slabs fail at once when the file ends early; none waits for another for ever."""
    monkeypatch.setattr(piecess, "SLAB_BYTES", 800)
    made = factories.plan(tmp_path, noise((50, 10, 10)), shards=1)
    read = direct.ExtentReader.read

    def cut_first(self, *arguments):
        os.truncate(tmp_path / "input.npy", 200)
        return read(self, *arguments)

    monkeypatch.setattr(direct.ExtentReader, "read", cut_first)
    # A thread that comes late finds the file changed, or shorter than its header says.
    with pytest.raises(IntegrityError, match=r"became shorter|has changed|is truncated"):
        copy.materialize(made, "00000")
    assert list((made.results.root / "shards").iterdir()) == []


KILLED = """
import os, sys
from pathlib import Path
from shardwise.multiply import copy
from shardwise.plan import plan
copy._Copier._copy_all = lambda *words: os.kill(os.getpid(), 9)
copy.materialize(plan.load(Path(sys.argv[1])), "00000")
"""


def test_what_a_killed_copy_left_is_removed_by_the_next(tmp_path):
    """After kill -9 in the middle of a copy its temporary file stays until the next attempt."""
    made = factories.plan(tmp_path, noise((5, 10, 10)), shards=1)
    subprocess.run(
        [sys.executable, "-c", KILLED, made.results.plan],
        env=os.environ | {"PYTHONPATH": str(factories.SCRIPTS)}, check=False,
    )  # fmt: skip
    assert len(leftovers(tmp_path)) == 1
    copy.materialize(made, "00000")
    assert leftovers(tmp_path) == []


def test_a_first_copy_lists_no_folder(tmp_path, monkeypatch):
    """The folder has an entry or two for every shard: to list it for each would be quadratic."""
    made = factories.plan(tmp_path, noise((5, 10, 10)), shards=2)

    def listed(path, name):
        raise AssertionError(f"{path} was looked for")

    monkeypatch.setattr(commit, "remove_leftovers", listed)
    for shard_id in made.shards:
        copy.materialize(made, shard_id)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    """Without room for the copy the job says what it needs, to be tried again."""
    made = factories.plan(tmp_path, noise((5, 10, 10)), shards=1)

    def full(descriptor, nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(direct.os, "ftruncate", full)
    with pytest.raises(TryAgain, match="No space left on device: the file needs 8096 bytes"):
        copy.materialize(made, "00000")
    assert list((made.results.root / "shards").iterdir()) == []
