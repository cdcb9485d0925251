"""Slices, commits and checksums: the bytes on disk."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise import arrays
from shardwise.arrays import StackWriter, commit, file_checksum, read_header, read_matrices
from shardwise.errors import IntegrityError

from tests.factories import FLOATS, INTEGERS, SCRIPTS, leftovers, save, stack


class BrokenError(Exception):
    """Something went wrong inside a commit."""


def write(path, content):
    """Commit some bytes."""
    with commit(path, sweep=True) as file:
        file.write(content)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_slices_are_those_of_numpy(tmp_path, order, byte_order, dtype):
    """Any run of matrices comes out native and contiguous, with NumPy's values."""
    array = np.asarray(
        stack((5, 3, 4), dtype), np.dtype(dtype).newbyteorder(byte_order), order=order
    )
    path = save(tmp_path / "a.npy", array)
    for start, stop in ((0, 5), (0, 1), (2, 4), (4, 5)):
        block = read_matrices(path, read_header(path), start, stop)
        assert block.dtype == np.dtype(dtype)
        assert block.dtype.isnative
        assert block.flags.c_contiguous
        np.testing.assert_array_equal(block, array[start:stop])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">c16", "<i2"])
def test_one_matrix_is_a_stack_of_one(tmp_path, order, dtype):
    """A file of two dimensions is read as (1, m, k)."""
    array = np.asarray(stack((3, 4), "float64"), dtype, order=order)
    path = save(tmp_path / "a.npy", array)
    block = read_matrices(path, read_header(path), 0, 1)
    np.testing.assert_array_equal(block, array[np.newaxis])
    assert block.dtype.isnative


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.data())
def test_any_slice_of_any_shape(tmp_path, n, m, k, fortran, data):
    """Shape, order and bounds never change the values."""
    array = np.asarray(stack((n, m, k)), order="F" if fortran else "C")
    path = save(tmp_path / "a.npy", array)
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    block = read_matrices(path, read_header(path), start, stop)
    np.testing.assert_array_equal(block, array[start:stop])


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    """Bytes that are gone since the header was read are noticed."""
    path = save(tmp_path / "a.npy", stack((4, 8, 8)))
    header = read_header(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(IntegrityError, match="became shorter"):
        read_matrices(path, header, 0, 4)


def test_nothing_is_visible_before_the_end(tmp_path):
    """The file appears whole, after the last byte."""
    path = tmp_path / "new" / "folder" / "a"
    with commit(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_nothing(tmp_path, error):
    """Whatever ends a writer, no file and no temporary file stays."""
    with pytest.raises(error), commit(tmp_path / "a") as file:  # noqa: PT012
        file.write(b"half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_former_file(tmp_path):
    """The file of an earlier success survives a later failure untouched."""
    path = tmp_path / "a"
    write(path, b"first")
    with pytest.raises(BrokenError), commit(path) as file:  # noqa: PT012 - the block is the writer
        file.write(b"second")
        raise BrokenError
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_way_is_an_error_and_leaves_nothing(tmp_path):
    """Where the rename fails, the error is told and the temporary file removed."""
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path / "a", b"x")
    assert leftovers(tmp_path) == []


def test_two_writers_leave_one_whole_file(tmp_path):
    """Writers of one file at the same time do not mix: one of them wins, whole."""
    path, barrier = tmp_path / "a", threading.Barrier(2)

    def writer(letter):
        for _ in range(5):
            with commit(path) as file:
                file.write(letter * 50_000)
                barrier.wait()
                file.write(letter * 50_000)

    threads = [threading.Thread(target=writer, args=(letter,)) for letter in (b"x", b"y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in (b"x" * 100_000, b"y" * 100_000)
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys
from pathlib import Path
from shardwise.arrays import commit
with commit(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path):
    """After kill -9 a temporary file is left; the next writer of the same file removes it."""
    path = tmp_path / "a"
    subprocess.run(
        [sys.executable, "-c", KILLED, path],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        check=False,
    )
    assert len(leftovers(tmp_path)) == 1
    write(tmp_path / "other", b"of another name")
    assert len(leftovers(tmp_path)) == 1
    write(path, b"whole")
    assert leftovers(tmp_path) == []
    assert path.read_bytes() == b"whole"


def test_what_a_living_writer_writes_is_not_swept(tmp_path):
    """A second writer never removes the temporary file of one that still works."""
    path = tmp_path / "a"
    with commit(path, sweep=True) as file:
        file.write(b"slow")
        write(path, b"fast")
        assert len(leftovers(tmp_path)) == 1
    assert path.read_bytes() == b"slow"


@pytest.mark.parametrize(
    "name",
    [
        ".a.elsewhere.1.abcd.tmp",
        ".ab.{host}.{dead}.abcd.tmp",
        ".a.{host}.{dead}.tmp",
        "a.{host}.{dead}.abcd.tmp",
        ".a.{host}.99999999999999999999.abcd.tmp",
    ],
)
def test_files_of_others_are_never_swept(tmp_path, name):
    """Other hosts' temporary files, and whatever only looks like one, stay."""
    child = subprocess.Popen(["true"])
    child.wait()
    other = tmp_path / name.format(host=os.uname().nodename, dead=child.pid)
    other.write_bytes(b"")
    write(tmp_path / "a", b"whole")
    assert other.exists()


def test_permissions_follow_the_umask(tmp_path):
    """A committed file is as readable as any other that the user makes."""
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            write(tmp_path / "a", b"x")
        finally:
            assert os.umask(before) == mask
        assert (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_a_rename_that_reports_failure_but_happened_counts(tmp_path, monkeypatch):
    """On NFS the answer to a rename can be lost; what counts is what lies there."""
    replace = os.replace

    def lost_answer(source, target):
        replace(source, target)
        raise FileNotFoundError(2, "lost answer")

    monkeypatch.setattr(arrays.os, "replace", lost_answer)
    write(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_a_rename_that_failed_is_an_error_beside_an_old_file(tmp_path, monkeypatch):
    """The former file at the target is not taken for the new one."""
    write(tmp_path / "a", b"old")

    def refused(source, target):
        raise PermissionError(13, "refused")

    monkeypatch.setattr(arrays.os, "replace", refused)
    with pytest.raises(PermissionError):
        write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["with space", "tab\there", "new\nline", "*[a]?", "b\udcff", "-n"])
def test_any_file_name_can_be_committed(tmp_path, name):
    """Names are bytes: spaces, line ends, patterns and non-UTF-8 are as good as any."""
    write(tmp_path / name, b"x")
    write(tmp_path / name, b"y")
    assert (tmp_path / name).read_bytes() == b"y"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_a_stack_and_its_checksums(tmp_path, dtype):
    """What was appended is what numpy.load returns, and the checksum is the file's."""
    array, path = stack((5, 3, 4), dtype), tmp_path / "a.npy"
    with commit(path) as file:
        writer = StackWriter(file, array.shape, array.dtype)
        writer.append(array[:2])
        writer.append(array[2])
        writer.append(np.asfortranarray(array[3:]))
        whole, elements = writer.checksums()
    loaded = np.load(path)
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)
    assert whole == file_checksum(path)
    digest = arrays.hasher()
    digest.update(array.tobytes())
    assert elements == digest.hexdigest()


def test_checksums_are_those_of_xxhsum(tmp_path):
    """The checksum is XXH3 of 128 bits: its value for no bytes is the published one."""
    (tmp_path / "empty").write_bytes(b"")
    assert file_checksum(tmp_path / "empty") == "99aa06d3014798d86001c324468d497f"


def test_a_flipped_bit_changes_both_checksums(tmp_path):
    """One bit of one element is seen."""
    array = stack((2, 3, 3), "float64")
    other = array.copy()
    other.view(np.uint64)[1, 2, 2] ^= 1
    sums = []
    for name, stored in (("a", array), ("b", other)):
        with commit(tmp_path / name) as file:
            writer = StackWriter(file, stored.shape, stored.dtype)
            writer.append(stored)
            sums.append(writer.checksums())
    assert sums[0][0] != sums[1][0]
    assert sums[0][1] != sums[1][1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_short_and_long_writes_are_refused(tmp_path, count):
    """A file with fewer or more matrices than its header says is never committed."""
    with (  # noqa: PT012 - the block is the writer
        pytest.raises(IntegrityError, match="more than the header says"),
        commit(tmp_path / "a.npy") as file,
    ):
        writer = StackWriter(file, (2, 3, 3), np.dtype("f4"))
        for _ in range(count):
            writer.append(stack((1, 3, 3)))
        writer.checksums()
    assert list(tmp_path.iterdir()) == []
