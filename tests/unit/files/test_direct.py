"""Fast reading: whatever the extents, the buffer and the file system, the bytes are the file's."""

import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.files import commit
from shardwise.files import direct as direct_io
from shardwise.files.direct import Extent, ExtentReader

MIB = 1024**2
SIZE = 20 * MIB + 777


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files of random bytes, by path."""
    folder, random = tmp_path_factory.mktemp("disk"), np.random.default_rng(0)
    made = {}
    for name in "ab":
        raw = random.integers(0, 256, SIZE, "uint8")
        raw.tofile(folder / name)
        made[str(folder / name)] = raw
    return made


@pytest.fixture
def forget(files):
    """Drops the files from the page cache, as well as the system lets us."""

    def dropped():
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    return dropped


@pytest.fixture
def reads(monkeypatch):
    """The offsets and lengths of all reads, as (direct, buffered); probes are left out."""
    direct, buffered, known = [], [], set()
    read, open_direct = os.preadv, direct_io.open_direct

    def opened(path, flags):
        descriptor = open_direct(path, flags)
        known.add(descriptor)
        return descriptor

    def noted(descriptor, buffers, offset, flags=0):
        if not flags:
            (direct if descriptor in known else buffered).append((offset, len(buffers[0])))
        return read(descriptor, buffers, offset, flags)

    monkeypatch.setattr(direct_io, "open_direct", opened)
    monkeypatch.setattr(direct_io.os, "preadv", noted)
    return direct, buffered


def never_cached(monkeypatch):
    """Make every piece look as if the page cache did not hold it."""
    monkeypatch.setattr(direct_io._File, "_cached", lambda *a: False)


def needs_direct(path):
    """Skip where the file system of the tests has no direct I/O."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct I/O")


def of_file(files, extents):
    """The bytes of extents, by a plain read."""
    return b"".join(files[path][start : start + n].tobytes() for path, start, n in extents)


LENGTHS = st.one_of(st.integers(0, 9000), st.integers(MIB - 5000, 9 * MIB))
CUTS = st.lists(st.tuples(st.booleans(), st.integers(0, SIZE), LENGTHS), max_size=5)


def drawn(files, cuts):
    """Extents of the two files, from what hypothesis made up."""
    names = list(files)
    return [Extent(names[b], at, min(n, SIZE - at)) for b, at, n in cuts]


@settings(max_examples=60)
@given(CUTS, st.booleans(), st.booleans())
def test_any_extents_are_those_of_the_files(files, forget, cuts, packed, cached):
    """Places, lengths and layout never change a byte, cached or not; the buffer's end stays.

    Who is told the bytes as they are read is told the same.
    """
    told = []
    extents = drawn(files, cuts)
    needed = direct_io.buffer_bytes(extents, packed)
    buffer = direct_io.aligned_empty(needed + 100)
    buffer[needed:] = 7
    with pytest.MonkeyPatch.context() as patch, ExtentReader() as reader:
        if not cached:
            forget()
            never_cached(patch)
        views = reader.read(extents, buffer, packed, lambda part: told.append(bytes(part)))
    assert b"".join(view.tobytes() for view in views) == of_file(files, extents)
    assert b"".join(told) == of_file(files, extents)
    assert needed <= sum(e.nbytes for e in extents) + 2 * direct_io.PAGE * max(1, len(extents))
    assert (buffer[needed:] == 7).all()


@given(CUTS, st.integers(0, 10**6))
def test_gathered_views_follow_each_other(files, cuts, offset):
    """Runs are moved together, to the byte of a page where they will be written."""
    extents = [e for e in drawn(files, cuts) if e.nbytes]
    if not extents:
        return
    buffer = direct_io.aligned_empty(direct_io.PAGE + direct_io.buffer_bytes(extents))
    with ExtentReader() as reader:
        whole = direct_io.gathered(buffer, reader.read(extents, buffer[direct_io.PAGE :]), offset)
    assert whole.ctypes.data % 4096 == offset % 4096
    assert whole.tobytes() == of_file(files, extents)


@pytest.mark.parametrize("cached", [False, True])
def test_what_is_cached_is_copied_and_else_read_directly(files, reads, monkeypatch, cached):
    """A large cold extent is read by whole pages around it, at once, and never buffered."""
    path, raw = next(iter(files.items()))
    needs_direct(path)
    if cached:
        raw.tofile(path)
    else:
        never_cached(monkeypatch)
    extents = [Extent(path, 128, 17 * MIB)]
    with ExtentReader() as reader:
        reader.read(extents, direct_io.aligned_empty(direct_io.buffer_bytes(extents)))
    direct, buffered = reads
    assert direct == ([] if cached else [(0, 17 * MIB + 4096)])
    assert sum(n for _, n in buffered) == (17 * MIB if cached else 0)


def refusing(monkeypatch, name, number, when):
    """Let a call of ``os`` fail with an error number when its arguments say so; counts failures."""
    call, refused = getattr(os, name), []

    def patched(*arguments):
        if when(*arguments):
            refused.append(arguments)
            raise OSError(number, os.strerror(number))
        return call(*arguments)

    monkeypatch.setattr(direct_io.os, name, patched)
    return refused


@pytest.mark.parametrize("where", ["open", "read", "probe"])
def test_a_file_system_without_direct_reads(files, forget, monkeypatch, where):
    """Whatever the file system refuses, the page cache serves; and it is not asked for ever."""
    path = next(iter(files))
    forget()
    if where == "open":
        refused = refusing(monkeypatch, "open", errno.EINVAL, lambda p, f, *a: f & os.O_DIRECT)
    elif where == "read":
        needs_direct(path)
        never_cached(monkeypatch)
        known, open_direct = [], direct_io.open_direct
        monkeypatch.setattr(
            direct_io, "open_direct", lambda *a: known.append(open_direct(*a)) or known[-1]
        )
        refused = refusing(monkeypatch, "preadv", errno.EINVAL, lambda d, *a: d in known)
    else:
        needs_direct(path)
        refused = refusing(monkeypatch, "preadv", errno.EOPNOTSUPP, lambda *a: len(a) == 4)
    extents = [Extent(path, 3, 9 * MIB)]
    buffer = direct_io.aligned_empty(direct_io.buffer_bytes(extents))
    with ExtentReader() as reader:
        for _ in range(3):
            buffer[:] = 0
            (view,) = reader.read(extents, buffer)
            assert view.tobytes() == of_file(files, extents)
    assert len(refused) == 1


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("kept", [0, 100, 4096, 8 * MIB, 9 * MIB + 9, 16 * MIB - 1])
def test_a_file_that_became_shorter_is_an_error(tmp_path, monkeypatch, cold, kept):
    """An extent that goes past the end of its file is never taken for read."""
    if cold:
        never_cached(monkeypatch)
    path = tmp_path / "a"
    path.write_bytes(bytes(kept))
    extents = [Extent(str(path), 0, 16 * MIB)]
    buffer = direct_io.aligned_empty(direct_io.buffer_bytes(extents))
    with (
        ExtentReader() as reader,
        pytest.raises(IntegrityError, match="a: became shorter while it was read"),
    ):
        reader.read(extents, buffer)


def test_threads_read_at_once_however_short_their_reads(files, monkeypatch):
    """They do not disturb each other, and a signal may cut a read at any byte, direct or not."""
    never_cached(monkeypatch)
    read, starts = os.preadv, range(0, 12 * MIB, MIB // 2)

    def short(descriptor, buffers, offset, *flags):
        part = random.choice([4096, MIB, MIB + 1000])
        return read(descriptor, [buffers[0][:part]], offset, *flags)

    monkeypatch.setattr(direct_io.os, "preadv", short)

    def bytes_at(start):
        extents = [Extent(path, start + 9, 3 * MIB) for path in files]
        views = reader.read(extents, direct_io.aligned_empty(direct_io.buffer_bytes(extents)))
        return b"".join(view.tobytes() for view in views) == of_file(files, extents)

    with ExtentReader() as reader, ThreadPoolExecutor(6) as pool:
        assert all(pool.map(bytes_at, starts))


def test_few_files_stay_open_and_none_after_the_end(tmp_path):
    """A folder of many files is read with few of them open."""
    extents = []
    for i in range(200):
        (tmp_path / f"{i:03}").write_bytes(i.to_bytes(2))
        extents.append(Extent(str(tmp_path / f"{i:03}"), 0, 2))

    def open_files():
        links = (f"/proc/self/fd/{d}" for d in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link).startswith(str(tmp_path)) for link in links)

    buffer = direct_io.aligned_empty(direct_io.buffer_bytes(extents, packed=True))
    with ExtentReader() as reader:
        views = reader.read(extents, buffer, packed=True)
        assert 0 < open_files() <= direct_io._MOST_OPEN
    assert open_files() == 0
    assert b"".join(v.tobytes() for v in views) == b"".join(i.to_bytes(2) for i in range(200))


@pytest.mark.parametrize("asked", ["read", "cached"])
def test_a_read_that_fails_names_its_file(tmp_path, files, monkeypatch, asked):
    """The one that was read, and not the one that is written meanwhile."""

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    extent = Extent(next(iter(files)), 0, 9 * MIB)
    buffer = direct_io.aligned_empty(direct_io.buffer_bytes([extent]))
    monkeypatch.setattr(direct_io.os, "preadv", broken)
    with (
        pytest.raises(OSError, match="Input/output error") as error,
        ExtentReader() as reader,
        commit.commit(tmp_path / "output.npy"),
    ):
        reader.read([extent], buffer) if asked == "read" else reader.cached(extent)
    assert error.value.filename == extent.path
