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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from shardwise.errors import InputError, IntegrityError

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 65536
CHUNK_BYTES = 8 * 1024**2
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


def _parse_header(text: str, offset: int, path: Path) -> Header:
    try:
        fields = ast.literal_eval(text.strip())
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


def read_matrices(path: Path, header: Header, start: int, stop: int) -> np.ndarray:
    """Matrices ``start`` to ``stop`` of a file, C-contiguous and in native byte order.

    Parameters
    ----------
    path, header
        A file with its header, of shape ``(n, m, k)``, or ``(m, k)`` for one matrix.

    Returns
    -------
    numpy.ndarray
        Shape ``(stop - start, m, k)``.

    Raises
    ------
    IntegrityError
        Where the file has become shorter since its header was read.
    """
    shape = header.shape if len(header.shape) == 3 else (1, *header.shape)
    if header.fortran:
        whole = np.memmap(path, header.dtype, "r", header.offset, header.shape, order="F")
        stack = whole if whole.ndim == 3 else whole[np.newaxis]
        return np.ascontiguousarray(stack[start:stop], dtype=header.native)
    block = np.empty((stop - start, *shape[1:]), header.dtype)
    matrix_bytes = block.itemsize * shape[1] * shape[2]
    with open(path, "rb", buffering=0) as file:
        file.seek(header.offset + start * matrix_bytes)
        _read_fully(file, raw_bytes(block), path)
    return block.astype(header.native, copy=False)


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


def hasher() -> "xxhash.xxh3_128":
    """The hash of every checksum: XXH3, 128 bits."""
    return xxhash.xxh3_128()


def file_checksum(path: Path) -> str:
    """Checksum of a whole file, as in receipts; ``xxhsum -H2`` prints the same digits."""
    digest = hasher()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


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
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
            _rename(temporary, path, os.fstat(file.fileno()))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


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


class StackWriter:
    """Appends matrices to a ``.npy`` file of a shape known in advance; hashes them on the way."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._file = file
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._left = int(np.prod(shape, dtype=object)) * self._dtype.itemsize
        self._file_hash, self._data_hash = hasher(), hasher()
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(file, fields)
        file.flush()
        file.seek(0)
        self._file_hash.update(file.read())

    def append(self, block: np.ndarray) -> None:
        """Append matrices, of any shape that continues the file."""
        raw = raw_bytes(np.ascontiguousarray(block, dtype=self._dtype))
        self._left -= len(raw)
        self._file_hash.update(raw)
        self._data_hash.update(raw)
        self._file.write(raw)

    def checksums(self) -> tuple[str, str]:
        """Checksums of the whole file and of its elements alone.

        Raises
        ------
        IntegrityError
            Where fewer or more elements were appended than the header says.
        """
        if self._left:
            raise IntegrityError(f"wrote {-self._left:+d} bytes more than the header says")
        return self._file_hash.hexdigest(), self._data_hash.hexdigest()
