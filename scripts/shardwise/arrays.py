"""A byte on disk: ``.npy`` headers, slices, atomic commits and checksums.

The format of ``.npy`` files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import ast
import math
import os
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from shardwise import disk, sizes
from shardwise.errors import InputError, IntegrityError, writing
from shardwise.smallfile import refuse_special

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 65536
MAX_DIMENSIONS = 64
CHUNK_BYTES = 8 * 1024**2
LINE_BYTES = 64 * 1024
"""Up to so many bytes it is faster to read more than is wanted than to seek."""
DATA_OFFSET = disk.PAGE
"""Byte at which the elements of our own files begin: a page, for direct I/O."""
_UMASK = threading.Lock()
_UNDER_WAY: set[Path] = set()
"""Temporary files of this process."""

_AGAIN = "write the file again with numpy.save"
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
        return read_header_and_status(path)[0]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def read_header_and_status(path: Path) -> tuple[Header, os.stat_result]:
    """As :func:`read_header`, with the status of the file that the header was read from.

    Raises
    ------
    OSError
        Where the file cannot be opened or read.
    """
    refuse_special(path)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        text, offset = _header_text(file, path)
    size, header = status.st_size, _parse_header(text, offset, path)
    count = 1
    for length in header.shape:
        count *= length  # Python integers: a header that lies cannot overflow
    expected = offset + count * header.dtype.itemsize
    if size != expected:
        what = "is truncated" if size < expected else "has trailing bytes"
        raise InputError(
            f"{path}: {what}: its header says shape {header.shape} of {header.dtype.name}, "
            f"which is {expected} bytes, but the file has {size}; copy or write it again"
        )
    return header, status


def _header_text(file: BinaryIO, path: Path) -> tuple[str, int]:
    """The header's dictionary as text, and the byte at which the elements begin."""
    start = file.read(8)
    if start[:6] != MAGIC or len(start) < 8:
        raise InputError(f"{path}: is not a .npy file (write it with numpy.save)")
    major, minor = start[6:8]
    if major not in (1, 2, 3) or minor:
        version = f"{major}.{minor}" if minor else major
        raise InputError(f"{path}: .npy format version {version} is unknown; known are 1, 2 and 3")
    wide = 2 if major == 1 else 4
    raw = file.read(wide)
    length = int.from_bytes(raw, "little") if len(raw) == wide else MAX_HEADER_BYTES + 1
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{path}: damaged .npy header (its length is not plausible); {_AGAIN}")
    text = file.read(length)
    if len(text) != length:
        raise InputError(f"{path}: is truncated inside the .npy header; {_AGAIN}")
    try:
        return text.decode("utf-8" if major == 3 else "latin-1"), 8 + len(raw) + length
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: damaged .npy header; {_AGAIN}") from error


# The files of one folder have the same few headers, and this is most of the work of reading one.
_evaluated = lru_cache(16)(ast.literal_eval)


def _parse_header(text: str, offset: int, path: Path) -> Header:
    try:
        fields = _evaluated(text.strip(" \t\r\n"))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise InputError(f"{path}: damaged .npy header; {_AGAIN}") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise InputError(
            f"{path}: damaged .npy header (descr, fortran_order and shape expected); {_AGAIN}"
        )
    shape, fortran = fields["shape"], fields["fortran_order"]
    # bool is an int in Python, and NumPy's own check lets booleans and negative lengths pass.
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise InputError(
            f"{path}: its header says shape {_short(shape)}, which is no shape; {_AGAIN}"
        )
    if any(n >= 2**63 for n in shape):
        raise InputError(f"{path}: its header says a length that no array can have; {_AGAIN}")
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(
            f"{path}: its header says {len(shape)} dimensions, and no array has so many; {_AGAIN}"
        )
    if type(fortran) is not bool:
        raise InputError(
            f"{path}: damaged .npy header (fortran_order is {_short(fortran)}); {_AGAIN}"
        )
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
    opened: disk.Opened = lambda path, status: None,
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
    opened
        Asked about the file before its first byte is read.

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
    with open(path, "rb", buffering=0) as file:
        opened(str(path), os.fstat(file.fileno()))
        if header.fortran:
            _read_fortran(file, path, header, (start, stop), out, first_row)
            return out
        row_bytes = out.itemsize * shape[2]
        file.seek(header.offset + start * shape[1] * row_bytes + first_row * row_bytes)
        _read_fully(file, raw_bytes(out), path)
    if not header.dtype.isnative:
        out.byteswap(inplace=True)
    return out


def _read_fortran(
    file: BinaryIO, path: Path, header: Header, part: tuple[int, int], out: np.ndarray,
    first_row: int,
) -> None:  # fmt: skip
    """Read some matrices of a file whose first index varies fastest, a bounded part at a time.

    A line is one element of every matrix: these lie side by side, and lines follow column by
    column. (Not through a memory map: a file that is cut off would kill the process.)
    """
    count, rows, columns = header.shape if len(header.shape) == 3 else (1, *header.shape)
    line, own = count * header.dtype.itemsize, out.shape[1]
    whole = line <= LINE_BYTES  # else only the wanted part of each line is read
    low, high = (0, count) if whole else part
    at_once = max(1, CHUNK_BYTES // line) if whole else 1
    tall = min(own, at_once)
    wide = min(columns, at_once // rows) if own == rows <= at_once else 1
    space = np.empty(wide * tall * (high - low), header.dtype)
    for j in range(0, columns, wide):
        for i in range(0, own, tall):
            shape = (min(wide, columns - j), min(tall, own - i), high - low)
            block = space[: math.prod(shape)].reshape(shape)
            first = j * rows + first_row + i
            file.seek(header.offset + first * line + low * header.dtype.itemsize)
            _read_fully(file, raw_bytes(block), path)
            taken = block[:, :, part[0] - low : part[1] - low].transpose(2, 1, 0)
            out[:, i : i + shape[1], j : j + shape[0]] = taken


def _read_fully(file: BinaryIO, view: np.ndarray, path: Path) -> None:
    done = 0
    while done < len(view):  # one read returns at most 2 GiB, and less at a signal
        got = file.readinto(view[done:])
        if not got:
            raise IntegrityError(f"{path}: became shorter while it was read")
        done += got


def raw_bytes(block: Any) -> Any:
    """The bytes of a C-contiguous array of NumPy or CuPy: uint8 ``(nbytes,)``, without a copy."""
    return block.reshape(-1).view("uint8")


def piece_digest(raw: np.ndarray | memoryview, number: int) -> int:
    """XXH3 of 128 bits of one piece of a file's elements, with its number as the seed."""
    return xxhash.xxh3_128_intdigest(raw, seed=number)


class PieceChecksum:
    """The checksum of a file's elements, from any runs of bytes, in any order, from any thread.

    The elements are rows of ``row_bytes``; the last may be shorter. Each row is cut into pieces of
    ``piece_bytes``, of which its last may be shorter, and the pieces are numbered over all rows.
    The checksum is the XOR of the pieces' digests (`piece_digest`); of no pieces it is 0. So
    several processes can each hash some pieces, and the XOR of what they have is that of the file.

    A bit that changed, and pieces that were exchanged, lost or doubled, are seen but for a chance
    of about 2 to the power of -128 (more where several pieces of 16 bytes or less have changed, as
    these have fewer digests). For the seed makes the place count: equal pieces do not cancel. That
    is enough against damage, which knows nothing of the hash. It is none against an attacker, who
    can choose bytes whose digests cancel. The header is no part of it, nor is the shape.

    Parameters
    ----------
    total_bytes, row_bytes, piece_bytes
        Sizes of all elements, of a row, and of a piece (`sizes.checksum_pieces`).

    Raises
    ------
    IntegrityError
        Where rows or pieces would be empty.
    """

    def __init__(self, total_bytes: int, row_bytes: int, piece_bytes: int) -> None:
        _refuse_empty_pieces(row_bytes, piece_bytes)
        self.total_bytes, self.row_bytes, self.piece_bytes = total_bytes, row_bytes, piece_bytes
        self._in_row = -(-row_bytes // piece_bytes)
        rows, rest = divmod(total_bytes, row_bytes)
        self._seen = bytearray(rows * self._in_row + -(-rest // piece_bytes))
        self._digest, self._twice, self._appended = 0, False, 0
        self._fragments: dict[int, list[tuple[int, np.ndarray]]] = {}
        self._missing: dict[int, int] = {}
        self._lock = threading.Lock()

    def update(self, offset: int, views: Iterable[np.ndarray | memoryview]) -> None:
        """Take bytes that begin at byte ``offset`` of the elements and follow each other.

        Whole pieces of a view are hashed where they lie. A fragment at either end is copied, and
        waits until the rest of its piece has come.

        Raises
        ------
        IntegrityError
            Where they go beyond the last element.
        """
        for view in views:
            raw = memoryview(view)
            if offset + len(raw) > self.total_bytes:
                raise IntegrityError(_TOO_MUCH)
            self._take(offset, raw)
            offset += len(raw)

    def append(self, raw: np.ndarray | memoryview) -> None:
        """Take the next bytes, however many; for one thread that has them in order."""
        self.update(self._appended, [raw])
        self._appended += len(raw)

    def hexdigest(self) -> str:
        """The checksum, in 32 hexadecimal digits.

        Raises
        ------
        IntegrityError
            Where a piece is missing, or came twice.
        """
        missing = self._seen.count(0)
        if self._twice or (self._fragments and not missing):
            raise IntegrityError("a piece of the elements came twice")
        if missing:
            raise IntegrityError(f"{missing} of {len(self._seen)} pieces are missing")
        return f"{self._digest:032x}"

    def _take(self, offset: int, raw: memoryview) -> None:
        at, digest, whole = 0, 0, []
        while at < len(raw):
            number, low, high = self._piece(offset + at)
            part = raw[at : high - offset]
            if len(part) == high - low:
                digest ^= piece_digest(part, number)
                whole.append(number)
            else:
                self._hold(number, offset + at - low, high - low, part)
            at += len(part)
        if whole:
            self._put(whole[0], len(whole), digest)

    def _piece(self, byte: int) -> tuple[int, int, int]:
        """The number of the piece that holds a byte, and its first and last byte."""
        row, at = divmod(byte, self.row_bytes)
        index = at // self.piece_bytes
        start = byte - at
        low = start + index * self.piece_bytes
        high = min(low + self.piece_bytes, start + self.row_bytes, self.total_bytes)
        return row * self._in_row + index, low, high

    def _hold(self, number: int, at: int, length: int, part: memoryview) -> None:
        """Keep a copy of a part of a piece, and hash the piece once all of it is there."""
        copy = np.frombuffer(part, np.uint8).copy()
        with self._lock:
            fragments = self._fragments.setdefault(number, [])
            fragments.append((at, copy))
            missing = self._missing.get(number, length) - len(copy)
            self._missing[number] = missing
            if missing > 0:
                return
            del self._fragments[number], self._missing[number]
        piece, end, twice = xxhash.xxh3_128(seed=number), 0, False
        for begin, fragment in sorted(fragments, key=itemgetter(0)):
            twice |= begin != end
            piece.update(fragment)
            end = begin + len(fragment)
        self._put(number, 1, piece.intdigest(), twice)

    def _put(self, first: int, count: int, digest: int, twice: bool = False) -> None:
        part = slice(first, first + count)
        with self._lock:
            self._twice |= twice or 1 in self._seen[part]
            self._seen[part] = b"\1" * count
            self._digest ^= digest


def _refuse_empty_pieces(row_bytes: int, piece_bytes: int) -> None:
    for name, value in (("row_bytes", row_bytes), ("piece_bytes", piece_bytes)):
        if value < 1:
            raise IntegrityError(f"a receipt says {name} {value}; it must be 1 or more")


def _piece_lengths(total: int, row_bytes: int, piece_bytes: int) -> Iterator[int]:
    """Bytes of each piece in turn, see :class:`PieceChecksum`."""
    for row in range(0, total, row_bytes):
        end = min(row + row_bytes, total)
        for piece in range(row, end, piece_bytes):
            yield min(piece + piece_bytes, end) - piece


def file_checksum(
    path: Path, offset: int, row_bytes: int, piece_bytes: int,
    read: Callable[[int], object] = lambda count: None,
) -> str:  # fmt: skip
    """Checksum of the elements of a file, as :class:`PieceChecksum` defines it.

    It takes :data:`CHUNK_BYTES` of memory, whatever the sizes.

    Parameters
    ----------
    offset
        Byte at which the elements begin.
    row_bytes, piece_bytes
        Sizes of a row and of a piece, from the receipt.
    read
        Told how many bytes were read, now and then.

    Raises
    ------
    IntegrityError
        Where rows or pieces would be empty, or the file becomes shorter meanwhile.
    """
    with open(path, "rb", buffering=0) as file:
        total = max(0, os.fstat(file.fileno()).st_size - offset)
        _refuse_empty_pieces(row_bytes, piece_bytes)
        buffer = np.empty(min(CHUNK_BYTES, max(1, total)), np.uint8)
        file.seek(offset)
        checksum = 0
        for number, length in enumerate(_piece_lengths(total, row_bytes, piece_bytes)):
            digest = xxhash.xxh3_128(seed=number)
            for done in range(0, length, len(buffer)):
                part = buffer[: min(len(buffer), length - done)]
                _read_fully(file, part, path)
                digest.update(part)
                read(len(part))
            checksum ^= digest.intdigest()
    return f"{checksum:032x}"


@contextmanager
def commit(path: Path, sweep: bool = False, receipt: Path | None = None) -> Iterator[BinaryIO]:
    """Write a file so that it exists whole or not at all, whatever happens.

    A temporary file of a unique name in the same folder is written, flushed to the disk and
    renamed; then the folder is flushed. Two writers of one file leave one whole file.

    Parameters
    ----------
    sweep
        Whether to look for what dead writers of this file left behind. It lists the folder, so it
        is for the large files.
    receipt
        What vouches for the former file of this name; it goes just before that does.

    Yields
    ------
    BinaryIO
        The temporary file, open for reading and writing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if sweep:
        remove_leftovers(path.parent, path.name)
    temporary = temporary_for(path)
    _UNDER_WAY.add(temporary)
    try:
        with writing(path), open(temporary, "w+b", opener=create_private) as file:
            yield file
            file.flush()
            publish(file, temporary, path, receipt)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        _UNDER_WAY.discard(temporary)


def temporary_for(path: Path) -> Path:
    """A name beside a file that no other writer of it has."""
    own = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    return path.with_name(f".{path.name}.{own}.tmp")


def abandon() -> None:
    """Remove the files of all commits under way, for who ends without waiting for its threads."""
    for temporary in list(_UNDER_WAY):
        with suppress(OSError):
            temporary.unlink()


def publish(file: BinaryIO, temporary: Path, path: Path, receipt: Path | None = None) -> None:
    """Give a whole file its name, flushed to the disk, with its folder.

    Parameters
    ----------
    file
        The open file; nothing of it waits in a buffer.
    temporary, path
        Its present name and the new one, on one file system.
    receipt
        What vouches for the former file of the new name, to be removed.
    """
    os.fchmod(file.fileno(), 0o666 & ~umask())
    os.fsync(file.fileno())
    if receipt is not None:
        receipt.unlink(missing_ok=True)
    _rename(temporary, path, os.fstat(file.fileno()))
    _fsync_folder(path.parent)


def create_private(name: str, flags: int) -> int:
    """An opener for `open`: a new file that its user alone can read; no link is followed."""
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


def umask() -> int:
    """The bits that new files of this process do not get."""
    with _UMASK:  # it is read by being changed, and two threads may commit at once
        mask = os.umask(0)
        os.umask(mask)
    return mask


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that dead writers on this host left: kill -9 runs no clean-up.

    Parameters
    ----------
    folder
        One that may not exist.
    name
        Of the only file whose leftovers go; by default those of all files.
    """
    file = r".+" if name is None else re.escape(name)
    host = re.escape(socket.gethostname())
    pattern = re.compile(rf"\.{file}\.{host}\.(\d{{1,9}})\.[0-9a-f]+\.tmp")
    try:
        with os.scandir(folder) as entries:
            found = [(Path(e.path), m[1]) for e in entries if (m := pattern.fullmatch(e.name))]
    except FileNotFoundError:
        return
    for path, pid in found:
        if not _alive(pid):
            path.unlink(missing_ok=True)


def _alive(pid: str) -> bool:
    """Whether a process may still write; one that nobody has waited for yet may not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # it is gone, or hidden
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    return state not in "ZX"


class StackWriter(AbstractContextManager):
    """Writes a ``.npy`` file of a shape known in advance; hashes the elements on the way.

    The elements begin at byte :data:`DATA_OFFSET`, so that they can be read and written around the
    page cache. The whole file is given its place on the disk at once.

    Parameters
    ----------
    file
        What :func:`commit` yields. The writer is to be closed before the commit ends.
    pieces
        Bytes of a row and of a piece of the checksum; left out, those that follow from the shape
        (`sizes.natural_row`, `sizes.checksum_pieces`).
    slab_bytes
        Bytes that whoever fills the file gathers before they are written.
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
        pieces: tuple[int, int] | None = None,
        slab_bytes: int = sizes.SLAB_BYTES,
        threads: int = disk.DIRECT_REQUESTS,
    ) -> None:
        self.slab_bytes = slab_bytes
        self._file, self._threads = file, threads
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self.nbytes = math.prod(shape) * self._dtype.itemsize
        if pieces is None:
            item = self._dtype.itemsize
            pieces = sizes.checksum_pieces(sizes.natural_row(shape, item), item)
        self.row_bytes, self.piece_bytes = pieces
        self._checksum = PieceChecksum(self.nbytes, self.row_bytes, self.piece_bytes)
        self._writer: disk.ExtentWriter | None = None
        self._lock = threading.Lock()
        folder = Path(file.name).parent
        disk.allocate(file.fileno(), DATA_OFFSET + self.nbytes, folder)
        file.write(padded_header(shape, self._dtype))
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
        """Write a run of bytes; from any thread, in any order.

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


def padded_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """A header of version 1.0 that ends at :data:`DATA_OFFSET`."""
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
    start = MAGIC + b"\x01\x00" + struct.pack("<H", DATA_OFFSET - 10)
    return start + repr(fields).encode("latin-1").ljust(DATA_OFFSET - 11) + b"\n"
