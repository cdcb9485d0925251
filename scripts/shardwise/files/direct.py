"""Fast bytes: extents of files, around the page cache where that pays.

Direct I/O (``O_DIRECT``) moves whole pages between a disk and memory without a copy in the kernel.
It needs the address, the offset and the length to be multiples of a page. So data that begins at
some byte of a page in its file is given a place at the same byte of a page in memory.
"""

import ctypes
import errno
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.errors import FULL, IntegrityError, TryAgain, writing
from shardwise.units import human_bytes

PAGE = 4096
PIECE_BYTES = 16 * 1024**2  # what a thread writes at once
SHORT_BYTES = 1024**2  # whatever is shorter goes through the page cache: direct I/O would not pay
# Direct reads, and direct writes, under way at once; more make some disks slower.
DIRECT_REQUESTS = 4
_MOST_OPEN = 16
_PROBES = 2
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


# Told the path and the status of each file that is opened; it may raise.
Opened = Callable[[str, os.stat_result], object]
# Told bytes as soon as they were read.
Then = Callable[[memoryview], object]


class Extent(NamedTuple):
    """Bytes ``offset`` to ``offset + nbytes`` of a file."""

    path: str
    offset: int
    nbytes: int


class _Run(NamedTuple):
    """Adjacent extents, where they go in the buffer, and whether direct I/O would pay."""

    extent: Extent
    at: int
    direct: bool


def aligned_empty(nbytes: int) -> np.ndarray:
    """A buffer of bytes that begins at a page."""
    raw = np.empty(nbytes + PAGE, np.uint8)
    first = -_address(raw) % PAGE
    return raw[first : first + nbytes]


def buffer_bytes(extents: Iterable[Extent], packed: bool = False) -> int:
    """Bytes of the buffer that some extents are read into."""
    runs = _layout(extents, packed)
    return _up(runs[-1].at + runs[-1].extent.nbytes) if runs else 0


def gathered(buffer: np.ndarray, views: Sequence[np.ndarray], offset: int) -> np.ndarray:
    """Move views of a buffer together, to a place where they can be written directly.

    Parameters
    ----------
    buffer
        Begins at a page, and has a page to spare before the first view.
    views
        Parts of the buffer in rising order, as :meth:`ExtentReader.read` returns them.
    offset
        Byte of a file where they will be written; the view returned lies at the same byte of a
        page.
    """
    begin = _address(buffer)
    starts = [_address(view) - begin for view in views]
    first = at = starts[0] - (starts[0] - offset) % PAGE
    for start, view in zip(starts, views, strict=True):
        if at != start:  # memmove, because numpy would copy parts that overlap twice
            ctypes.memmove(begin + at, begin + start, view.nbytes)
        at += view.nbytes
    return buffer[first:at]


class ExtentReader(AbstractContextManager["ExtentReader"]):
    """Reads extents of files, in the thread that asks for them; several may at the same time.

    What the page cache holds is copied from it; the rest is read around it. A file system that
    cannot do that, or cannot tell, is read through the page cache.
    """

    def __init__(self, opened: Opened = lambda path, status: None) -> None:
        self._opened = opened
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._requests = threading.BoundedSemaphore(DIRECT_REQUESTS)
        self._lock = threading.Lock()

    def __exit__(self, *error: object) -> None:
        """Close all files; nobody reads any more."""
        while self._files:
            self._files.popitem()[1].close()

    def read(
        self, extents: Iterable[Extent], buffer: np.ndarray, packed: bool = False,
        then: Then = lambda part: None,
    ) -> list[np.ndarray]:  # fmt: skip
        """Read extents into a buffer; the views returned are its runs, in order.

        Parameters
        ----------
        extents
            Adjacent extents of one file make one run.
        buffer
            Bytes that begin at a page, :func:`buffer_bytes` of them or more. All of them may be
            written to.
        packed
            False: each run begins at the same byte of a page as in its file, on pages of its own.
            True: the runs follow each other without gaps, and several go through the page cache.
        then
            Is told the bytes in order, part by part, each before the next is read: what came from
            the page cache is still in a cache of this core.

        Raises
        ------
        IntegrityError
            Where a file ends before its extent does.
        """
        runs = _layout(extents, packed)
        if not runs:
            return []
        if _address(buffer) % PAGE or buffer.nbytes < _up(runs[-1].at + runs[-1].extent.nbytes):
            raise ValueError("the buffer is too small, or does not begin at a page")
        memory = memoryview(buffer)
        for run in runs:
            with self._open(run.extent.path) as file:
                file.read(run, memory, then)
        return [buffer[run.at : run.at + run.extent.nbytes] for run in runs]

    def cached(self, extent: Extent) -> bool:
        """Whether the page cache is known to hold an extent, or most of it."""
        with self._open(extent.path) as file:
            return file.cached(extent.offset, extent.offset + extent.nbytes)

    def copy(self, extents: Sequence[Extent], buffer: np.ndarray) -> Iterator[np.ndarray]:
        """Read extents of one file through the page cache, in this thread, one behind the other.

        Each is handed out before the next is read, while it is in a cache of this core.
        """
        at = 0
        with self._open(extents[0].path) as file:
            for extent in extents:
                view = buffer[at : at + extent.nbytes]
                file.copy(extent.offset, memoryview(view))
                yield view
                at += extent.nbytes

    @contextmanager
    def _open(self, path: str) -> "Iterator[_File]":
        """The open file of a path; those that were not used for longest are closed."""
        with self._lock:
            file = self._files.pop(path, None) or _File(path, self._requests, self._opened)
            self._files[path] = file
            file.users += 1
        try:
            with writing(path):  # else who writes what is read would give it the output's name
                yield file
        finally:
            with self._lock:
                file.users -= 1
                idle = [name for name, other in self._files.items() if not other.users]
                for name in idle[: max(0, len(self._files) - _MOST_OPEN)]:
                    self._files.pop(name).close()


class _File:
    """A file being read: one descriptor through the page cache, one around it where it can be."""

    def __init__(self, path: str, requests: threading.BoundedSemaphore, opened: Opened) -> None:
        self.users = 0
        self._path, self._requests, self._opened = path, requests, opened
        self._lock = threading.Lock()
        self._buffered = -1  # not open yet
        self._direct: int | None = None
        self._refused = False

    def close(self) -> None:
        for descriptor in (self._buffered, self._direct):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)

    def read(self, run: _Run, memory: memoryview, then: Then) -> None:
        self._open_buffered()
        _, start, nbytes = run.extent
        end, done = start + nbytes, start
        if run.direct and not self._refused and not self._cached(start, end):
            around = self._open_direct()
            if around is not None:
                with self._requests:
                    done = min(self._read_direct(around, run, memory), end)
                then(memory[run.at : run.at + done - start])
        self.copy(done, memory[run.at + done - start : run.at + nbytes], then)

    def copy(self, offset: int, memory: memoryview, then: Then = lambda part: None) -> None:
        """Read through the page cache."""
        self._open_buffered()
        while memory:
            got = os.preadv(self._buffered, [memory], offset)
            if not got:
                raise IntegrityError(f"{self._path}: became shorter while it was read")
            then(memory[:got])
            offset, memory = offset + got, memory[got:]

    def _open_direct(self) -> int | None:
        with self._lock:
            if self._direct is None and not self._refused:
                # The same file once more, whatever its name leads to by now.
                self._direct = open_direct(f"/proc/self/fd/{self._buffered}", os.O_RDONLY)
                self._refused = self._direct is None
            return None if self._refused else self._direct

    def _open_buffered(self) -> None:
        with self._lock:
            if self._buffered < 0:
                self._buffered = os.open(self._path, os.O_RDONLY)
                self._opened(self._path, os.fstat(self._buffered))

    def cached(self, start: int, end: int) -> bool:
        """Whether the page cache is known to hold a part of the file."""
        self._open_buffered()
        return self._cached(start, end) and not self._refused

    def _cached(self, start: int, end: int) -> bool:
        """Whether the page cache seems to hold a part of the file, or cannot be asked."""
        # Bytes at random: asking makes the kernel fetch the page, so the next one would find it.
        for _ in range(_PROBES):
            try:
                os.preadv(
                    self._buffered, [bytearray(1)], random.randrange(start, end), os.RWF_NOWAIT
                )
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                self._refused = True
                return True
        return True

    def _read_direct(self, descriptor: int, run: _Run, memory: memoryview) -> int:
        """Read the pages around a run; the byte that was reached, at the end of the file too."""
        _, start, nbytes = run.extent
        low, high = _down(start), _up(start + nbytes)
        at = run.at - (start - low)
        done = low
        while done < start + nbytes:
            part = memory[at + done - low : at + high - low]
            got = _unless_refused(os.preadv, descriptor, [part], done)
            if got is None:
                self._refused = True
                break
            done += got
            if not got or got % PAGE:  # the end of the file; the page cache knows what is there
                break
        return max(start, done)


class ExtentWriter:
    """Writes to one open file by a pool of threads, in any order.

    Whole pages that lie right in memory go around the page cache, the fragments beside them
    through it: so no page of the file is written both ways, and neighbours may share one.
    """

    def __init__(self, descriptor: int) -> None:
        self._pool = ThreadPoolExecutor(DIRECT_REQUESTS, "write")
        self._buffered = descriptor
        # The same file once more, whatever its name is by now.
        self._direct = open_direct(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
        self._refused = self._direct is None

    def close(self) -> None:
        """End the threads; the descriptor that was given stays open."""
        self._pool.shutdown()
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def start(self, offset: int, view: np.ndarray) -> list[Future[None]]:
        """Begin to write contiguous bytes at an offset; to be waited for by :func:`settle`."""
        memory = memoryview(view)
        end = offset + view.nbytes
        direct = view.nbytes >= SHORT_BYTES and (_address(view) - offset) % PAGE == 0
        futures = []
        for low, high in _cut(offset, end):
            whole = direct and low % PAGE == 0 and high % PAGE == 0
            part = memory[low - offset : high - offset]
            futures.append(self._pool.submit(self._write, low, part, whole))
        return futures

    def _write(self, offset: int, part: memoryview, direct: bool) -> None:
        done = self._write_direct(offset, part) if direct else 0
        while done < len(part):
            done += os.pwrite(self._buffered, part[done:], offset + done)

    def _write_direct(self, offset: int, part: memoryview) -> int:
        """Write around the page cache; the number of bytes that were."""
        done = 0
        while done < len(part) and self._direct is not None and not self._refused:
            got = _unless_refused(os.pwrite, self._direct, part[done:], offset + done)
            if got is None:
                self._refused = True
                break
            done += got
            if got % PAGE:
                break
        return done


def settle(futures: Sequence[Future[Any]]) -> None:
    """Wait until no future runs any more, then raise what the first of them raised.

    Their memory is free to be used again afterwards, also where one failed.
    """
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()


def _unless_refused(call: Callable[..., int], *arguments: Any) -> int | None:
    """What a direct read or write returns; None if the file system has no such thing."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        return None


def open_direct(path: str, flags: int) -> int | None:
    """A descriptor for direct I/O, or None if the file system has none."""
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno in (*_REFUSALS, errno.ENOENT):  # ENOENT: no /proc
            return None
        raise


def allocate(descriptor: int, nbytes: int, path: Path) -> None:
    """Give a new file its size, and its place on the disk where the file system can.

    ``os.posix_fallocate`` is avoided: where the file system cannot, it writes every page.
    """
    try:
        library = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_int64(nbytes)
        if nbytes and library.fallocate(descriptor, 0, ctypes.c_int64(0), size) != 0:
            number = ctypes.get_errno()
            if number not in (*_REFUSALS, errno.EINTR):
                raise OSError(number, os.strerror(number))
        os.ftruncate(descriptor, nbytes)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise TryAgain(
            f"{path}: {error.strerror}: the file needs {nbytes} bytes ({human_bytes(nbytes)}); "
            "make room; nothing was committed, try again"
        ) from error


def _layout(extents: Iterable[Extent], packed: bool) -> list[_Run]:
    """Adjacent extents joined, each with its place in the buffer."""
    joined: list[Extent] = []
    for extent in extents:
        last = joined[-1] if joined else None
        if last and (last.path, last.offset + last.nbytes) == (extent.path, extent.offset):
            joined[-1] = last._replace(nbytes=last.nbytes + extent.nbytes)
        else:
            joined.append(extent)
    runs: list[_Run] = []
    at = 0
    for extent in joined:
        if not packed or not runs:
            at = _up(at) + extent.offset % PAGE
        alone = not packed or len(joined) == 1  # on its pages of memory
        runs.append(_Run(extent, at, alone and extent.nbytes >= SHORT_BYTES))
        at += extent.nbytes
    return runs


def _cut(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range into pieces of whole pages, and the fragments at both ends."""
    low, high = _up(start), _down(end)
    inner = {*range(low, high, PIECE_BYTES), high} if low < high else set()
    return pairwise(sorted({start, end} | {p for p in inner if start < p < end}))


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _down(offset: int) -> int:
    return offset - offset % PAGE


def _up(offset: int) -> int:
    return offset + -offset % PAGE
