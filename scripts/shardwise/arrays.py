"""A byte on disk: ``.npy`` headers, slices, atomic commits and checksums.

The format of ``.npy`` files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import ast
import os
import re
import secrets
import socket
import stat
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from shardwise import disk
from shardwise.errors import InputError, IntegrityError

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 65536
CHUNK_BYTES = 8 * 1024**2
DATA_OFFSET = disk.PAGE
"""Byte at which the elements of our own files begin: a page, for direct I/O."""
PIECE_BYTES = 32 * 1024**2
"""Size of a piece of the checksum where nothing else is asked for."""
_TOO_MUCH = "there are more bytes than the header says"
DTYPES = ("f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
ALLOWED = "float16/32/64, complex64/128 and integers of 8 to 64 bits"


@dataclass(frozen=True)
class Header:
    """What the header of a ``.npy`` file says, checked against the file's size.

    Attributes
    ----------
    shape
        Shape as plain integers.
    descr
        Element type as in the file, such as ``<f4``.
    fortran
        True where the first index varies fastest.
    offset
        Byte at which the elements begin.
    """

    shape: tuple[int, ...]
    descr: str
    fortran: bool
    offset: int

    @property
    def dtype(self) -> np.dtype:
        """Element type as in the file, byte order included."""
        return np.dtype(self.descr)

    @property
    def little_endian(self) -> bool:
        """Whether the elements lie as in our own files; single bytes do in any case."""
        return self.dtype == self.dtype.newbyteorder("<")

    @property
    def native(self) -> np.dtype:
        """Element type in this machine's byte order."""
        return self.dtype.newbyteorder("=")


def read_header(path: Path) -> Header:
    """Read and check the header of a ``.npy`` file; nothing is unpickled or allocated.

    Raises
    ------
    InputError
        Where the file is missing, is no ``.npy`` file, holds elements that are not numbers, or is
        shorter or longer than its header says.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise InputError(f"{path}: is not a file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            text, offset = _header_text(file, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    header = _parse_header(text, offset, path)
    count = 1
    for length in header.shape:
        count *= length  # Python integers: a header that lies cannot overflow
    expected = offset + count * header.dtype.itemsize
    if size != expected:
        what = "is truncated" if size < expected else "has trailing bytes"
        raise InputError(
            f"{path}: {what}: its header says shape {header.shape} of {header.dtype.name}, "
            f"which is {expected} bytes, but the file has {size}"
        )
    return header


def _header_text(file: BinaryIO, path: Path) -> tuple[str, int]:
    """The header's dictionary as text, and the byte at which the elements begin."""
    start = file.read(8)
    if start[:6] != MAGIC or len(start) < 8:
        raise InputError(f"{path}: is not a .npy file (write it with numpy.save)")
    major = start[6]
    if major not in (1, 2, 3):
        raise InputError(f"{path}: .npy format version {major} is unknown; known are 1, 2 and 3")
    length_format = "<H" if major == 1 else "<I"
    raw = file.read(struct.calcsize(length_format))
    length = struct.unpack(length_format, raw)[0] if len(raw) in (2, 4) else MAX_HEADER_BYTES + 1
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{path}: damaged .npy header (its length is not plausible)")
    text = file.read(length)
    if len(text) != length:
        raise InputError(f"{path}: is truncated inside the .npy header")
    return text.decode("utf-8" if major == 3 else "latin-1", "replace"), 8 + len(raw) + length


# The files of one folder have the same few headers, and this is most of the work of reading one.
_evaluated = lru_cache(16)(ast.literal_eval)


def _parse_header(text: str, offset: int, path: Path) -> Header:
    try:
        fields = _evaluated(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise InputError(f"{path}: damaged .npy header") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise InputError(f"{path}: damaged .npy header (descr, fortran_order and shape expected)")
    shape, fortran = fields["shape"], fields["fortran_order"]
    # bool is an int in Python, and NumPy's own check lets booleans and negative lengths pass.
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise InputError(f"{path}: its header says shape {_short(shape)}, which is no shape")
    if any(n >= 2**63 for n in shape):
        raise InputError(f"{path}: its header says a length that no array can have")
    if type(fortran) is not bool:
        raise InputError(f"{path}: damaged .npy header (fortran_order is {fortran!r})")
    return Header(shape, _checked_descr(fields["descr"], path), fortran, offset)


def _checked_descr(descr: object, path: Path) -> str:
    if not isinstance(descr, str):
        raise InputError(f"{path}: holds a structured dtype; allowed are {ALLOWED}")
    match = re.fullmatch(r"([<>|=])?([a-zA-Z])(\d{0,9})(\[\w+\])?", descr)
    kind = match[2] if match else "?"
    if not match or match[4] or kind + match[3] not in DTYPES:
        names = {
            "O": "holds Python objects, which are never unpickled",
            "U": "holds strings",
            "S": "holds strings",
            "b": "holds booleans; save them as uint8",
            "V": "holds raw or structured records",
        }
        what = names.get(kind, f"holds elements of type {_short(descr)}")
        raise InputError(f"{path}: {what}; allowed are {ALLOWED}")
    return descr


def _short(value: object) -> str:
    """Something of a header, for a message; Python refuses to print numbers of 4,300 digits."""
    try:
        return f"{value!r:.99}"
    except ValueError:
        return "of too many digits"


def read_matrices(
    path: Path,
    header: Header,
    start: int,
    stop: int,
    out: np.ndarray | None = None,
    first_row: int = 0,
) -> np.ndarray:
    """Matrices ``start`` to ``stop`` of a file, C-contiguous and in native byte order.

    Parameters
    ----------
    path, header
        A file with its header, of shape ``(n, m, k)``, or ``(m, k)`` for one matrix.
    out
        Where to put them: C-contiguous, ``(stop - start, m, k)``, of the native element type. Not
        much memory beside it is needed, whatever the order of the file. For one matrix it may have
        fewer rows: those from ``first_row`` on.

    Returns
    -------
    numpy.ndarray
        Shape ``(stop - start, m, k)``; ``out`` where it was given.

    Raises
    ------
    IntegrityError
        Where the file has become shorter since its header was read.
    """
    shape = header.shape if len(header.shape) == 3 else (1, *header.shape)
    if out is None:
        out = np.empty((stop - start, *shape[1:]), header.native)
    if header.fortran:
        _read_fortran(path, header, (start, stop), out, first_row)
        return out
    with open(path, "rb", buffering=0) as file:
        row_bytes = out.itemsize * shape[2]
        file.seek(header.offset + start * shape[1] * row_bytes + first_row * row_bytes)
        _read_fully(file, raw_bytes(out), path)
    if not header.dtype.isnative:
        out.byteswap(inplace=True)
    return out


def _read_fortran(
    path: Path, header: Header, part: tuple[int, int], out: np.ndarray, first_row: int
) -> None:
    """Read some matrices of a file whose first index varies fastest, a bounded part at a time."""
    shape = header.shape if len(header.shape) == 3 else (1, *header.shape)
    count, rows, columns = shape
    line = count * header.dtype.itemsize  # one element of every matrix: these lie side by side
    own = out.shape[1]
    wide = min(own, max(1, CHUNK_BYTES // max(1, line)))
    high = max(1, CHUNK_BYTES // max(1, line * own))
    for j in range(0, columns, high):
        piece = (min(high, columns - j), rows, count)
        for i in range(0, own, wide):
            try:  # of what is mapped, only what is taken is read
                chunk = np.memmap(path, header.dtype, "r", header.offset + j * rows * line, piece)
            except ValueError as error:
                raise IntegrityError(f"{path}: became shorter while it was read") from error
            lines = slice(first_row + i, first_row + min(i + wide, own))
            taken = chunk[:, lines, slice(*part)].transpose(2, 1, 0)
            out[:, i : i + wide, j : j + piece[0]] = taken


def _read_fully(file: BinaryIO, view: memoryview, path: Path) -> None:
    done = 0
    while done < len(view):  # one read returns at most 2 GiB, and less at a signal
        got = file.readinto(view[done:])
        if not got:
            raise IntegrityError(f"{path}: became shorter while it was read")
        done += got


def raw_bytes(block: np.ndarray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return memoryview(block.reshape(-1).view(np.uint8))


class PieceChecksum:
    """The checksum of a file's elements, from pieces in any order and from any thread.

    It is XXH3 of 128 bits of the concatenated XXH3 digests (128 bits, big-endian) of consecutive
    pieces; the last piece may be shorter. The header is no part of it.

    Parameters
    ----------
    total_bytes, piece_bytes
        Sizes of all elements and of one piece.
    """

    def __init__(self, total_bytes: int, piece_bytes: int) -> None:
        if piece_bytes < 1:
            raise IntegrityError(f"a receipt says piece_bytes {piece_bytes}; it must be 1 or more")
        self.total_bytes, self.piece_bytes = total_bytes, piece_bytes
        self._digests: dict[int, bytes] = {}
        self._twice = False
        self._lock = threading.Lock()
        self._tail, self._tail_bytes, self._appended = xxhash.xxh3_128(), 0, 0

    def update(self, offset: int, views: Iterable[np.ndarray | memoryview]) -> None:
        """Take whole pieces that begin at byte ``offset`` of the elements.

        Several views may form one piece, and one view many.
        """
        index, rest = divmod(offset, self.piece_bytes)
        if rest:
            raise ValueError(f"byte {offset} begins no piece of {self.piece_bytes} bytes")
        digest, missing = xxhash.xxh3_128(), self._length(index)
        for view in views:
            raw = memoryview(view)
            while raw:
                if not missing:
                    raise IntegrityError(_TOO_MUCH)
                part, raw = raw[:missing], raw[missing:]
                digest.update(part)
                missing -= len(part)
                if not missing:
                    self._put(index, digest.digest())
                    index += 1
                    digest, missing = xxhash.xxh3_128(), self._length(index)
        if missing != self._length(index):
            raise ValueError(f"the bytes from {offset} end inside a piece of {self.piece_bytes}")

    def append(self, raw: memoryview) -> None:
        """Take the next bytes, however many; for one thread that has them in order."""
        while raw:
            missing = self._length(self._appended) - self._tail_bytes
            if not missing:
                raise IntegrityError(_TOO_MUCH)
            part, raw = raw[:missing], raw[missing:]
            self._tail.update(part)
            self._tail_bytes += len(part)
            if len(part) == missing:
                self._put(self._appended, self._tail.digest())
                self._appended += 1
                self._tail, self._tail_bytes = xxhash.xxh3_128(), 0

    def hexdigest(self) -> str:
        """The checksum.

        Raises
        ------
        IntegrityError
            Where a piece is missing, or came twice.
        """
        count = -(-self.total_bytes // self.piece_bytes)
        if self._twice:
            raise IntegrityError("a piece of the elements came twice")
        if len(self._digests) != count:
            raise IntegrityError(f"{count - len(self._digests)} of {count} pieces are missing")
        return xxhash.xxh3_128(b"".join(self._digests[i] for i in range(count))).hexdigest()

    def _length(self, index: int) -> int:
        return max(0, min(self.piece_bytes, self.total_bytes - index * self.piece_bytes))

    def _put(self, index: int, digest: bytes) -> None:
        with self._lock:
            self._twice |= index in self._digests
            self._digests[index] = digest


def file_checksum(path: Path, offset: int, piece_bytes: int) -> str:
    """Checksum of the elements of a file, as :class:`PieceChecksum` defines it.

    Parameters
    ----------
    offset
        Byte at which the elements begin.
    piece_bytes
        Size of a piece, from the receipt.
    """
    with open(path, "rb", buffering=0) as file:
        total = max(0, os.fstat(file.fileno()).st_size - offset)
        checksum = PieceChecksum(total, piece_bytes)
        file.seek(offset)
        while chunk := file.read(CHUNK_BYTES):
            checksum.append(memoryview(chunk))
    return checksum.hexdigest()


@contextmanager
def commit(path: Path, sweep: bool = False) -> Iterator[BinaryIO]:
    """Write a file so that it exists whole or not at all, whatever happens.

    A temporary file of a unique name in the same folder is written, flushed to the disk and
    renamed; then the folder is flushed. Two writers of one file leave one whole file.

    Parameters
    ----------
    sweep
        Whether to look for what dead writers of this file left behind. It lists the folder, so it
        is for the large files.

    Yields
    ------
    BinaryIO
        The temporary file, open for reading and writing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if sweep:
        _sweep(path)
    name = f".{path.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    temporary = path.with_name(name)
    try:
        with open(temporary, "w+b", opener=_create) as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
            _rename(temporary, path, os.fstat(file.fileno()))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _create(name: str, flags: int) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)


def _rename(temporary: Path, path: Path, written: os.stat_result) -> None:
    try:
        os.replace(temporary, path)
    except OSError:
        # On NFS a rename whose answer was lost reports failure although it happened.
        try:
            now = os.stat(path)
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != (written.st_dev, written.st_ino):
            raise


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sweep(path: Path) -> None:
    """Remove what dead writers of this file on this host left behind: kill -9 runs no clean-up."""
    host = re.escape(socket.gethostname())
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{host}\.(\d{{1,9}})\.[0-9a-f]+\.tmp")
    with os.scandir(path.parent) as entries:
        stale = [e.path for e in entries if (m := pattern.fullmatch(e.name)) and not _alive(m[1])]
    for name in stale:
        Path(name).unlink(missing_ok=True)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class StackWriter(AbstractContextManager):
    """Writes a ``.npy`` file of a shape known in advance; hashes the elements on the way.

    The elements begin at byte :data:`DATA_OFFSET`, so that they can be read and written around the
    page cache. The whole file is given its place on the disk at once.

    Parameters
    ----------
    file
        What :func:`commit` yields. The writer is to be closed before the commit ends.
    piece_bytes
        Size of a piece of the checksum.
    threads
        Threads that :meth:`write_at` writes with.

    Raises
    ------
    TryAgain
        Where the disk has no room for the file.
    """

    def __init__(
        self,
        file: BinaryIO,
        shape: tuple[int, ...],
        dtype: np.dtype,
        piece_bytes: int = PIECE_BYTES,
        threads: int = disk.DIRECT_REQUESTS,
    ) -> None:
        self.piece_bytes = piece_bytes
        self._file, self._threads = file, threads
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self.nbytes = int(np.prod(shape, dtype=object)) * self._dtype.itemsize
        self._checksum = PieceChecksum(self.nbytes, piece_bytes)
        self._writer: disk.ExtentWriter | None = None
        self._lock = threading.Lock()
        folder = Path(file.name).parent
        disk.allocate(file.fileno(), DATA_OFFSET + self.nbytes, folder)
        file.write(_padded_header(shape, self._dtype))
        file.flush()

    def __exit__(self, *error: object) -> None:
        """End the threads that write."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def append(self, block: np.ndarray) -> None:
        """Append matrices, of any shape that continues the file."""
        raw = raw_bytes(np.ascontiguousarray(block, dtype=self._dtype))
        self._checksum.append(raw)
        self._file.write(raw)

    def write_at(self, offset: int, views: Sequence[np.ndarray]) -> None:
        """Write whole pieces of the checksum; from any thread, in any order.

        Fastest where each view begins at the same byte of a page in memory as in the file, which
        is ``offset`` as well.

        Parameters
        ----------
        offset
            Byte of the elements at which the views begin.
        views
            Bytes that follow each other in the file: little-endian elements in C order.
        """
        with self._lock:
            if self._writer is None:
                self._writer = disk.ExtentWriter(self._file.fileno(), self._threads)
        futures: list[Future] = []
        at = DATA_OFFSET + offset
        try:
            for view in views:
                futures += self._writer.start(at, view)
                at += view.nbytes
            self._checksum.update(offset, views)  # while the threads write
        finally:
            disk.settle(futures)

    def checksum(self) -> str:
        """The checksum of the elements.

        Raises
        ------
        IntegrityError
            Where fewer or more elements were written than the header says.
        """
        return self._checksum.hexdigest()


def _padded_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """A header of version 1.0 that ends at :data:`DATA_OFFSET`."""
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
    start = MAGIC + b"\x01\x00" + struct.pack("<H", DATA_OFFSET - 10)
    return start + repr(fields).encode("latin-1").ljust(DATA_OFFSET - 11) + b"\n"
