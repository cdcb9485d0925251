"""Commits where no run of faults looks, checksums, and files that are read whole."""

import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from operator import xor

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.files import checksum as checksums
from shardwise.files import pieces, small
from shardwise.files.checksum import PieceChecksum, file_checksum
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter, read_header

from tests.factories import FLOATS, INTEGERS, SCRIPTS, refusal, stack
from tests.hostile.bad_inputs import npy


@contextmanager
def file_size_limit(nbytes):
    """No file can grow beyond this, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_error_of_the_disk_hides_what_ended_a_writer(tmp_path):
    """The buffer cannot be written on a full disk; nor can a file be removed that is elsewhere."""
    folder = tmp_path / "folder"
    with (  # noqa: PT012 - the block is the writer
        file_size_limit(10),
        pytest.raises(ZeroDivisionError),
        commit(folder / "a") as file,
    ):
        file.write(bytes(100))
        folder.rename(tmp_path / "elsewhere")
        folder.touch()
        raise ZeroDivisionError


def test_a_receipt_in_another_folder_of_this_name_stays(tmp_path):
    """Two folders were renamed while a file was written: this receipt is another run's."""
    folder, receipt = tmp_path / "folder", tmp_path / "folder" / "a.json"

    def write() -> None:
        with commit(folder / "a", receipt=receipt):
            folder.rename(tmp_path / "elsewhere")
            folder.mkdir()
            receipt.touch()

    refusal(write, kind=FileNotFoundError)
    assert receipt.exists()


ABANDONED = """
import os, sys, threading
from pathlib import Path
from shardwise.files import commit as commits

def write(name, begun, go_on):
    with commits.commit(Path(sys.argv[1], name)) as file:
        begun.set()
        go_on.wait()

begun, late, never = threading.Event(), threading.Event(), threading.Event()
threading.Thread(target=write, args=("half", begun, never), daemon=True).start()
begun.wait()
commits.abandon()
threading.Thread(target=write, args=("new", late, never), daemon=True).start()
assert not late.wait(0.5), "a file was made after the end had begun"
os._exit(0)
"""


def test_who_abandons_all_commits_leaves_no_file(tmp_path):
    """Neither of a thread in the middle of its file, nor of one that was about to create it."""
    environ = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    subprocess.run([sys.executable, "-c", ABANDONED, str(tmp_path)], check=True, env=environ)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [
    ".a.elsewhere.1.abcd.tmp", ".ab.{host}.{dead}.abcd.tmp", ".a.{host}.{dead}.tmp",
    "a.{host}.{dead}.abcd.tmp", ".a.{host}.99999999999999999999.abcd.tmp",
    ".a.{host}.{own}.abcd.tmp",
])  # fmt: skip
def test_files_of_others_are_never_swept(tmp_path, name):
    """Those of living writers and of other hosts stay, and whatever only looks like one."""
    child = subprocess.Popen(["true"])
    child.wait()
    other = tmp_path / name.format(host=os.uname().nodename, dead=child.pid, own=os.getpid())
    other.write_bytes(b"")
    with commit(tmp_path / "a", sweep=True):
        pass
    assert other.exists()


def expected(raw, row, piece):
    """The checksum of some elements, by its definition: the seed of a piece is its number."""
    rows = [raw[i : i + row] for i in range(0, len(raw), row)]
    parts = [r[i : i + piece] for r in rows for i in range(0, len(r), piece)]
    digests = [xxhash.xxh3_128_intdigest(part, seed=n) for n, part in enumerate(parts)]
    return f"{reduce(xor, digests, 0):032x}"


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_a_stack_and_its_checksum(tmp_path, monkeypatch, dtype):
    """The file is NumPy's, and the checksum that of the elements; parts come in any order."""
    monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", 100)
    array, path = stack((5, 3, 4), dtype), tmp_path / "a.npy"
    last = array[4].reshape(-1).view(np.uint8)
    with commit(path) as file:
        writer = StackWriter(file, array.shape, array.dtype)
        writer.begin()
        writer.write_at(4 * len(last), last)
        writer.write_at(0, array[:4].reshape(-1).view(np.uint8))
        checksum = writer.hashed.hexdigest()
    loaded = np.load(path)
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)
    cut = writer.row_bytes, writer.piece_bytes
    assert cut == pieces.checksum_pieces(12 * array.itemsize)
    assert checksum == file_checksum(path, 4096, *cut) == expected(array.tobytes(), *cut)


SIZES = st.tuples(st.integers(0, 200), st.integers(1, 60), st.integers(1, 40))


@given(SIZES, st.integers(0, 2**32), st.randoms(use_true_random=False), st.integers(0, 2))
def test_runs_in_any_order_and_any_cut(sizes_, seed, random, times):
    """From several threads; whole pieces of some runs come as digests, as from a device.

    There is no checksum if one of the runs, whichever it is, is missing or comes twice.
    """
    (total, row, piece), raw = sizes_, np.random.default_rng(seed).bytes(sizes_[0])
    checksum, view = PieceChecksum(total, row, piece), memoryview(raw)
    marks = sorted({0, total, *(random.randint(0, total) for _ in range(6))})
    runs = [(*run, random.random() < 0.5) for run in pairwise(marks)]
    random.shuffle(runs)
    runs = runs[:1] * times + runs[1:]
    random.shuffle(runs)

    def take(run):
        low, high, elsewhere = run
        first, behind = checksum.whole_pieces(low, high) if elsewhere else (0, 0)
        for number in range(first, behind):
            begin, end = checksum.bounds(number)
            assert low <= begin < end <= high
            checksum.put(number, 1, checksums.piece_digest(view[begin:end], number))
        if first < behind:
            checksum.update(low, view[low : checksum.bounds(first)[0]])
            low = checksum.bounds(behind - 1)[1]
        checksum.update(low, view[low:high])

    with ThreadPoolExecutor(3) as pool:
        for _ in pool.map(take, runs):
            pass
    if times == 1 or not total:
        assert checksum.hexdigest() == expected(raw, row, piece)
    else:
        with pytest.raises(IntegrityError, match="is missing, or came twice"):
            checksum.hexdigest()


def test_bytes_that_no_file_has_are_refused():
    """Bytes past the end, and receipts with empty rows or pieces."""
    with pytest.raises(IntegrityError, match="more bytes"):
        PieceChecksum(12, 8, 8).update(8, np.zeros(5, np.uint8))
    for row, piece in ((8, 0), (0, 8)):
        with pytest.raises(IntegrityError, match="must be 1 or more"):
            PieceChecksum(12, row, piece)


def test_a_full_disk_is_told_before_the_first_byte(tmp_path):
    """A file larger than there is room for fails before the first element, and leaves nothing."""
    with (
        file_size_limit(100_000),
        pytest.raises(OSError, match="File too large"),
        commit(tmp_path / "a") as file,
    ):
        StackWriter(file, (1, 100, 1000), np.dtype("f8")).begin()
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_is_read_whole(tmp_path):
    """If it has no more bytes than the limit."""
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert small.read(path) == small.read(path, 5) == b"12345"
    with pytest.raises(IntegrityError, match="has 5 bytes, too many for this file"):
        small.read(path, 4)
    assert small.read(tmp_path / "none") is None


@pytest.mark.parametrize("shape", ["(True, 4)", "(-2, -2)", str((1,) * 65)])
def test_a_shape_is_of_few_whole_numbers(tmp_path, shape):
    """NumPy's parser lets these pass; `tests/hostile` has the more common errors of headers."""
    path = tmp_path / "bad.npy"
    path.write_bytes(npy("'<f4'", shape, b"1234" * 4))
    assert f"{path}: its .npy header is damaged" in refusal(read_header, path)
