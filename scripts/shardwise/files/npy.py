"""``.npy`` files: headers, slices of matrices, and our own stacks."""

import ctypes
import errno
import io
import math
import os
import struct
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as headers

from shardwise.errors import InputError, TryAgain, short, writing
from shardwise.files import extents, pieces
from shardwise.files.checksum import PieceChecksum, raw_bytes

MOST_HEADER_BYTES = 12 + 10_000  # NumPy's own limit, and what comes before
_OTHERS = {  # by their first bytes
    b"\x89HDF": "is an HDF5 file; let its name end in .h5 and add the dataset: run.h5:/x",
    b"PK\3\4": "is a zip archive, such as a .npz file or a zipped store of Zarr; unpack it and "
    "name its contents",
}
_PARSERS = {(1, 0): headers.read_array_header_1_0, (2, 0): headers.read_array_header_2_0}
_PARSING = threading.Lock()  # Python 3.11 fails now and then if two threads parse at once
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR)
_LINE_BYTES = 64 * 1024  # in lines up to this, it is faster to read unwanted bytes than to seek
DATA_OFFSET = 4096  # at which elements begin in our own files: a page, for direct I/O
DTYPES = ("f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
ALLOWED = "float16/32/64, complex64/128 and integers of 8 to 64 bits"


@dataclass(frozen=True)
class Header:
    """What the header of a ``.npy`` file says, checked against the file's size."""

    shape: tuple[int, ...]
    descr: str  # as in the file, such as ``<f4``
    fortran: bool = False  # the first index varies fastest
    offset: int = 0  # byte at which the elements begin
    chunk: tuple[int, ...] = ()  # shape that is decoded at once; empty: no decoding is needed
    chunks: int = 0  # number of chunks of the whole array
    missing: int = 0  # how many of the chunks were never written
    fill: str = ""  # the value that is read for a missing chunk
    place: int = 0  # identifies an array in its file, whatever name led to it

    @property
    def matrices(self) -> int:
        """How many matrices the array holds: N of ``(N, m, k)``, one of ``(m, k)``."""
        return math.prod(self.shape[:-2])

    @property
    def dtype(self) -> np.dtype:
        """Element type as in the file, byte order included."""
        return np.dtype(self.descr)

    @property
    def native(self) -> np.dtype:
        """Element type in this machine's byte order."""
        return self.dtype.newbyteorder("=")

    @property
    def reordered(self) -> bool:
        """Whether the elements lie in another order than in our own files."""
        return self.fortran or self.dtype != self.dtype.newbyteorder("<")


def read_header(path: Path) -> Header:
    """The header of a ``.npy`` file that is no pipe; see `parse_header`."""
    with open(path, "rb") as file:
        return parse_header(file.read(MOST_HEADER_BYTES), os.fstat(file.fileno()).st_size, path)


def parse_header(raw: bytes | bytearray, size: int, path: Path | str) -> Header:
    """The header in the first bytes of a ``.npy`` file of ``size`` bytes; InputError if wrong."""
    if not raw.startswith(headers.MAGIC_PREFIX):
        said = _OTHERS.get(bytes(raw[:4]), "is not a .npy file (write it with numpy.save)")
        raise InputError(f"{path} {said}")
    begin = 10 if raw[6:7] == b"\1" else 12
    offset = begin + int.from_bytes(raw[8:begin], "little")
    found = _parse(bytes(raw[:offset]))
    if found is None:
        words = "its .npy header is damaged or cut off; write the file again with numpy.save"
        raise InputError(f"{path}: {words}")
    shape, fortran, dtype = found
    header = Header(shape, checked_descr(dtype, path), fortran, offset)
    # Python integers: a wrong header cannot make them overflow.
    expected = offset + math.prod(shape) * dtype.itemsize
    if size != expected:
        what = "is truncated" if size < expected else "has trailing bytes"
        raise InputError(
            f"{path} {what}: its header says shape {shape} of {dtype.name}, which is "
            f"{expected} bytes, but the file has {size}; copy or write it again"
        )
    return header


@lru_cache(16)  # the files of a folder share a few headers, and parsing takes most of the time
def _parse(raw: bytes) -> tuple[tuple[int, ...], bool, np.dtype] | None:
    """Shape, Fortran order and element type; None if the header is damaged."""
    file = io.BytesIO(raw)
    try:
        with _PARSING:
            shape, fortran, dtype = _PARSERS[headers.read_magic(file)](file)
    except SystemError as error:  # of Python itself: the header may be whole
        raise TryAgain(f"Python could not parse a .npy header: {error}") from error
    except Exception:  # NumPy's parser fails in many ways: deep nesting is a MemoryError
        return None
    # bool is an int in Python, and NumPy's own check lets booleans and negative lengths pass.
    good = len(shape) <= 64 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    return (shape, fortran, dtype) if good else None


def checked_descr(dtype: np.dtype, path: Path | str) -> str:
    """An element type as NumPy writes it; InputError if it is not one of :data:`DTYPES`."""
    if dtype.str[1:] not in DTYPES:
        raise InputError(
            f"{path}: holds elements of type {short(dtype.str)}; allowed are {ALLOWED}: convert "
            "it, for example by a.astype('float32')"
        )
    return dtype.str


def read_matrices(
    path: Path | str, header: Header, start: int, stop: int, out: np.ndarray, first_row: int = 0,
    opened: extents.Opened = lambda path, status: None,
) -> None:  # fmt: skip
    """Read matrices ``start`` to ``stop`` of a file into ``out``, C-contiguous ``(n, m, k)``.

    ``out`` is of the native element type. For one matrix it may have fewer rows: those from
    ``first_row`` on. IntegrityError if the file has become shorter.
    """
    rows, columns = header.shape[-2:]
    file = extents.OpenFiles(opened).get(str(path))
    if not header.fortran:
        offset = header.offset + (start * rows + first_row) * columns * out.itemsize
        file.read_at(offset, raw_bytes(out))
        if not header.dtype.isnative:
            out.byteswap(inplace=True)
        return
    # A line is the same element of all matrices. (SIGBUS could kill a process with a memory map.)
    line, height = header.matrices * header.dtype.itemsize, out.shape[1]
    whole = line <= _LINE_BYTES  # else only the wanted part of each line is read
    low, high = (0, header.matrices) if whole else (start, stop)
    at_once = max(1, pieces.PART_BYTES // line) if whole else 1
    tall = min(height, at_once)
    wide = min(columns, at_once // rows) if height == rows <= at_once else 1
    for j in range(0, columns, wide):
        for i in range(0, height, tall):
            shape = (min(wide, columns - j), min(tall, height - i), high - low)
            block = np.empty(shape, header.dtype)
            first = j * rows + first_row + i
            file.read_at(header.offset + first * line + low * block.itemsize, raw_bytes(block))
            taken = block[:, :, start - low : stop - low].transpose(2, 1, 0)
            out[:, i : i + shape[1], j : j + shape[0]] = taken


class StackWriter:
    """Writes a ``.npy`` file of a shape known in advance to ``file``, which :func:`commit` yields.

    ``hashed`` is the checksum of the elements so far; code that writes to `file` directly updates
    it. ``cut`` are the bytes of a row and of a piece of it; by default they follow from the shape.
    """

    def __init__(
        self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype,
        cut: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.file, self.shape, self.dtype = file, shape, np.dtype(dtype).name
        self._dtype, item = np.dtype(dtype).newbyteorder("<"), np.dtype(dtype).itemsize
        # One array of a stack, or node of a sum; with 1 or 2 axes, the whole array.
        row = math.prod(shape[1:] if len(shape) > 2 else shape) * item
        self.row_bytes, self.piece_bytes = cut or pieces.checksum_pieces(row, item)
        self.hashed = PieceChecksum(math.prod(shape) * item, self.row_bytes, self.piece_bytes)

    def begin(self) -> None:
        """Reserve disk space, if the file system supports that, and write the file's header."""
        file, nbytes = self.file.fileno(), DATA_OFFSET + self.hashed.total_bytes
        # os.posix_fallocate would write to every page of the file if there is no support.
        library, size = ctypes.CDLL(None, use_errno=True), ctypes.c_int64(nbytes)
        with writing(Path(self.file.name).parent):
            refused = library.fallocate(file, 0, ctypes.c_int64(0), size)
            if refused and (number := ctypes.get_errno()) not in _UNSUPPORTED:
                raise OSError(number, os.strerror(number))
            os.ftruncate(file, nbytes)
        self.file.write(padded_header(self.shape, self._dtype))
        self.file.flush()

    def write_at(self, offset: int, raw: np.ndarray) -> None:
        """Write little-endian elements from byte ``offset`` on; from any thread, in any order."""
        self.hashed.update(offset, raw)
        memory, at = memoryview(raw), DATA_OFFSET + offset
        while memory:
            done = os.pwrite(self.file.fileno(), memory, at)
            at, memory = at + done, memory[done:]


def padded_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """A header of version 1.0 that ends at :data:`DATA_OFFSET`."""
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
    start = headers.magic(1, 0) + struct.pack("<H", DATA_OFFSET - 10)
    return start + repr(fields).encode("latin-1").ljust(DATA_OFFSET - 11) + b"\n"
