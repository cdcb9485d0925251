"""A stack of matrices, read from the files that the plan names."""

import os
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from shardwise.errors import InputError, IntegrityError
from shardwise.files.direct import PAGE, SHORT_BYTES, Extent, ExtentReader, Then
from shardwise.files.formats import registry
from shardwise.files.npy import Header, read_matrices
from shardwise.files.paths import for_bash
from shardwise.plan import memory
from shardwise.plan.identity import InputFiles, is_as_planned
from shardwise.plan.plan import Source


def _planned_header(source: Source) -> tuple[Header, os.stat_result]:
    """The header of a file that the plan knows; a change since then is no fault of the user's."""
    check_unchanged(source)  # first: what else is wrong follows from it
    try:
        header, status = registry.read_header_and_status(source.path)
    except OSError as error:
        raise _unreadable(source, error) from error
    except InputError as error:
        raise IntegrityError(f"{error}; {_cure(source)}") from error
    _refuse_replaced(source, status)
    return header, status


def check_unchanged(source: Source) -> None:
    """Refuse an input file that is gone, or is not the one that was planned."""
    try:
        _refuse_replaced(source, os.stat(source.file))
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Source, error: OSError) -> IntegrityError:
    return IntegrityError(
        f"{source.path} cannot be read any more: {error.strerror}; restore it, or {_cure(source)}"
    )


def _refuse_replaced(source: Source, status: os.stat_result) -> None:
    if not is_as_planned(source, status):
        raise IntegrityError(
            f"{source.path} has changed since the plan was made; run snakemake again"
        )


def _cure(source: Source) -> str:
    """What to do about a file that is not what the plan says; a copy of ours has no identity."""
    if source.identity:
        return "run snakemake again"
    return f"rm {for_bash(Path(source.path).with_suffix('.json'))}, then snakemake as before"


_Part = tuple[Path, Header, int, int]

# Room that `StackReader.read_bytes` needs beside a slab: two pages for every long extent.
SPARE_BYTES = 128 * PAGE


class StackReader:
    """Reads matrices of a stack, whatever files they lie in; from any thread.

    It refuses a file that is not the one that was planned for (IntegrityError), and notes in
    ``inputs`` those that it reads, but for files that a receipt vouches for.
    """

    def __init__(
        self, sources: Iterable[Source], shape: tuple[int, int], dtype: str,
        inputs: InputFiles | None = None,
    ) -> None:  # fmt: skip
        self.inputs = inputs or InputFiles()
        self._sources = sorted(sources, key=lambda source: source.first)
        self._firsts = [source.first for source in self._sources]
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self.matrix_bytes = self._dtype.itemsize * shape[0] * shape[1]
        self._header: tuple[str, Header] | None = None
        self._converting = threading.Lock()
        self._converted: tuple[int, int, np.ndarray] | None = None
        self._space: np.ndarray | None = None
        self._decoded: dict[int, np.ndarray] = {}

    def read(self, start: int, stop: int) -> np.ndarray:
        """Matrices ``start`` to ``stop`` as a native C-contiguous array ``(n, m, k)``."""
        block = np.empty((stop - start, *self._shape), self._dtype)
        self._fill(block, self._parts(start, stop))
        return block

    def read_bytes(
        self, reader: ExtentReader, buffer: np.ndarray, low: int, high: int,
        then: Then = lambda part: None,
    ) -> list[np.ndarray]:  # fmt: skip
        """Bytes ``low`` to ``high`` of the stack, as little-endian elements in C order.

        The buffer begins at a page, and has room for the bytes and :data:`SPARE_BYTES`. Returned
        are views of it that follow each other in the stack; ``then`` is told them part by part, as
        by `ExtentReader.read`.
        """
        size = self.matrix_bytes
        start, stop = low // size, -(-high // size)
        parts = self._parts(start, stop)
        chunked = any(header.chunk for _, header, _, _ in parts)
        if chunked or any(header.fortran or not header.little_endian for _, header, _, _ in parts):
            view = buffer[: high - low]
            if chunked:
                self._decode(view, low)
            elif size > memory.CONVERTED_BYTES:
                self._convert_rows(view, low)
            else:
                self._convert(view, low, parts, start, stop)
            then(memoryview(view))
            return [view]
        extents, at = [], start * size
        for path, header, first, last in parts:
            begin, end = max(low, at), min(high, at + (last - first) * size)
            offset = header.offset + first * size + begin - at
            extents.append(Extent(str(path), offset, end - begin))
            at += (last - first) * size
        # Short ones are not read directly anyway; so a buffer needs little room to spare.
        packed = min(extent.nbytes for extent in extents[1:-1] or extents[:1]) < SHORT_BYTES
        return reader.read(extents, buffer, packed, then)

    def _convert(
        self, view: np.ndarray, low: int, parts: list[_Part], start: int, stop: int
    ) -> None:
        """Bytes of matrices in another order, by way of whole matrices in memory.

        One thread at a time, and the matrices are kept: the next bytes may be of the same one.
        """
        with self._converting:
            if self._converted is None or self._converted[:2] != (start, stop):
                self._converted = None
                # Its memory is kept: the allocator would hold one such block for every thread.
                if self._space is None or len(self._space) < stop - start:
                    self._space = None
                    self._space = np.empty((stop - start, *self._shape), self._dtype)
                block = self._space[: stop - start]
                self._fill(block, parts)
                if sys.byteorder == "big":
                    block.byteswap(inplace=True)
                self._converted = (start, stop, block.reshape(-1).view(np.uint8))
            at = low - start * self.matrix_bytes
            np.copyto(view, self._converted[2][at : at + view.nbytes])

    def _convert_rows(self, view: np.ndarray, low: int) -> None:
        """The same where a matrix is large: by way of some of its rows."""
        (rows, columns), done = self._shape, 0
        row = self._dtype.itemsize * columns
        height = max(1, memory.CONVERTED_BYTES // row)
        while done < view.nbytes:
            matrix, byte = divmod(low + done, self.matrix_bytes)
            first = byte // row // height * height
            with self._converting:
                if self._converted is None or self._converted[:2] != (matrix, first):
                    self._converted = None
                    block = np.empty((1, min(height, rows - first), columns), self._dtype)
                    ((path, header, place, _),) = self._parts(matrix, matrix + 1)
                    read_matrices(path, header, place, place + 1, block, first)
                    if sys.byteorder == "big":
                        block.byteswap(inplace=True)
                    self._converted = (matrix, first, block.reshape(-1).view(np.uint8))
                raw = self._converted[2][byte - first * row :][: view.nbytes - done]
                np.copyto(view[done : done + raw.nbytes], raw)
            done += raw.nbytes

    def _decode(self, view: np.ndarray, low: int) -> None:
        """Bytes of matrices of which some lie in chunks, by way of blocks of whole chunks.

        One thread at a time. Two blocks are kept, as a slab ends and begins anywhere in one.
        """
        done = 0
        with self._converting:
            while done < view.nbytes:
                begin, raw = self._block(low + done)
                part = raw[low + done - begin :][: view.nbytes - done]
                np.copyto(view[done : done + part.nbytes], part)
                done += part.nbytes

    def _block(self, byte: int) -> tuple[int, np.ndarray]:
        """The block that holds a byte of the stack, and the byte at which the block begins."""
        matrix, within = divmod(byte, self.matrix_bytes)
        ((path, header, place, _),) = self._parts(matrix, matrix + 1)
        (rows, columns), item = self._shape, self._dtype.itemsize
        chunk = header.chunk or (1, 1, columns)
        most, height = memory.decoded_block(chunk, self._shape, item)
        first, top = place // most * most, within // (columns * item) // height * height
        last, bottom = min(first + most, (1, *header.shape)[-3]), min(top + height, rows)
        begin = (matrix - place + first) * self.matrix_bytes + top * columns * item
        if begin not in self._decoded:
            while len(self._decoded) > 1:
                del self._decoded[next(iter(self._decoded))]
            block = np.empty((last - first, bottom - top, columns), self._dtype)
            self._fill_one(path, header, (first, last), block, top)
            if sys.byteorder == "big":
                block.byteswap(inplace=True)
            self._decoded[begin] = block.reshape(-1).view(np.uint8)
        return begin, self._decoded[begin]

    def _parts(self, start: int, stop: int) -> list[_Part]:
        """The files that hold some matrices, checked, in the order of the stack."""
        first = bisect_right(self._firsts, start) - 1
        parts, reached = [], start
        for source in islice(self._sources, max(0, first), None):
            low, high = max(start, source.first), min(stop, source.first + source.count)
            if low >= high:
                break
            header = self._checked_header(source)
            path = Path(source.path if header.chunk else source.file)
            parts.append((path, header, low - source.first, high - source.first))
            reached += high - low
        if reached != stop:
            raise IntegrityError(f"matrices {start} to {stop} are not in the files of the plan")
        return parts

    def _fill(self, block: np.ndarray, parts: list[_Part]) -> None:
        at = 0
        for path, header, low, high in parts:
            self._fill_one(path, header, (low, high), block[at : at + high - low], 0)
            at += high - low

    def _fill_one(
        self, path: Path, header: Header, part: tuple[int, int], out: np.ndarray, top: int
    ) -> None:
        """Read some matrices of a file, of one matrix maybe some rows only, from ``top`` on."""
        if header.chunk:
            out[:] = registry.read_matrices(str(path), part, (top, top + out.shape[1]))
        else:
            read_matrices(path, header, *part, out, top, self.inputs.compare)

    def _checked_header(self, source: Source) -> Header:
        latest = self._header  # another thread may set it to another file at any time
        if latest is None or latest[0] != source.path:
            header, status = _planned_header(source)
            if source.identity:
                self.inputs.note(source.file, status)
            if header.shape[-2:] != self._shape or header.native != self._dtype:
                raise IntegrityError(
                    f"{source.path} is {header.shape} of {header.native.name}, but the plan was "
                    f"made for {self._shape} of {self._dtype.name}; {_cure(source)}"
                )
            latest = self._header = (source.path, header)
        return latest[1]
