"""Where the matrices lie: a stack, a folder, a glob, a sheet, or the synthetic stack."""

import csv
import json
import os
import stat
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from glob import has_magic
from itertools import islice
from pathlib import Path

import numpy as np

from shardwise import ALGORITHM, sizes
from shardwise.config import Settings
from shardwise.errors import InputError, IntegrityError, short
from shardwise.files.commit import commit
from shardwise.files.direct import PAGE, SHORT_BYTES, Extent, ExtentReader
from shardwise.files.lookup import absent, matches, mode_of, refuse_undecodable, shown
from shardwise.files.npy import Header, read_header, read_header_and_status, read_matrices
from shardwise.files.paths import for_bash
from shardwise.files.small import refuse_special
from shardwise.identity import InputFiles, identity_of, is_as_planned, state_of
from shardwise.plan import Source, Stack
from shardwise.planfile import kept, to_keep


def stack_of(settings: Settings, synthetic: Path, cache: Path | None = None) -> Stack:
    """Find and check the input that the config names, from headers alone.

    Parameters
    ----------
    synthetic
        Where the synthetic stack lies or will lie.
    cache
        A file that keeps headers by path and identity, for inputs of many files.

    Raises
    ------
    InputError
        Where a file is missing, damaged, or does not fit the others.
    """
    if settings.input is None:
        return _synthetic_stack(settings, synthetic)
    try:
        return _stack_on_disk(settings, cache)
    except OSError as error:  # such as a name that is too long, or a folder that is closed to us
        own = error.filename or settings.input
        where = "" if str(own) == settings.input else f" ({shown(own)})"
        raise InputError(f"input: {settings.input}: {error.strerror}{where}") from error


def _stack_on_disk(settings: Settings, cache: Path | None) -> Stack:
    assert settings.input is not None
    path = Path(settings.input)
    mode = mode_of(path)
    if mode is None and has_magic(settings.input):
        return _stack_of_files(matches(settings.input), f"glob {settings.input}", cache)
    if mode is None:
        raise InputError(f"input: {absent(path)}")
    if stat.S_ISDIR(mode):
        files = sorted(p for p in path.iterdir() if p.suffix == ".npy")
        return _stack_of_files(files, f"folder {path}", cache)
    refuse_special(path, "input: ")
    if path.suffix == ".tsv":
        return _stack_of_files(_sheet_paths(path), f"sheet {path}", cache)
    return _one_stack(path, "input")


def right_of(settings: Settings, left: Stack) -> tuple[Stack | None, bool]:
    """The right factor of ``A @ B``, or None, and whether one matrix serves all."""
    if settings.right is None:
        return None, False
    path = Path(settings.right)
    if mode_of(path) is None:
        raise InputError(f"right: {absent(path)}")
    try:
        header = read_header(path)
    except InputError as error:
        raise InputError(f"right: {error}") from error
    if len(header.shape) == 2:
        stack = _stack_of_files([path], f"right {path}", None)
    else:
        stack = _one_stack(path, "right")
        if stack.matrices != left.matrices:
            raise InputError(
                f"right: {path} holds {stack.matrices} matrices, but the input holds "
                f"{left.matrices}; give as many, or one 2-D matrix for all"
            )
    if stack.dtype != left.dtype:
        raise InputError(
            f"right: {path} holds {stack.dtype}, but the input holds {left.dtype}; save both alike"
        )
    return stack, len(header.shape) == 2


def check_product(product: str, left: Stack, right: Stack | None) -> None:
    """Refuse factors whose inner dimensions do not match."""
    m, k = left.shape
    if product == "A @ A" and m != k:
        raise InputError(
            f"product A @ A needs square matrices, but the input's are {(m, k)} @ {(m, k)}; "
            "use A.T @ A or A @ A.T"
        )
    if right is not None and right.shape[0] != k:
        raise InputError(
            f"product A @ B: inner dimensions do not match: A is {(m, k)}, B is {right.shape}; "
            f"B must have {k} rows"
        )


def _synthetic_stack(settings: Settings, path: Path) -> Stack:
    recipe = settings.synthetic
    count, dim, dtype = recipe["matrices"], recipe["dim"], recipe["dtype"]
    identity = json.dumps([recipe, ALGORITHM["synthesize"]], sort_keys=True)
    source = Source(str(path), 0, count, identity)
    return Stack((source,), count, (dim, dim), dtype)


def _one_stack(path: Path, key: str) -> Stack:
    header, status = read_header_and_status(path)
    if len(header.shape) != 3:
        other = "one B for all has two" if key == "right" else "for 2-D files, name their folder"
        raise InputError(
            f"{key}: {path} has shape {header.shape}; a stack has three dimensions (N, m, k); "
            f"{other}"
        )
    _refuse_empty(path, header.shape)
    n, m, k = header.shape
    return Stack((Source(str(path), 0, n, identity_of(status)),), n, (m, k), header.native.name)


def _stack_of_files(paths: list[Path], origin: str, cache: Path | None) -> Stack:
    """Many 2-D files as one stack, in the order given."""
    if not paths:
        kind, _, name = origin.partition(" ")
        where = f" (looked in {Path(name).absolute()})" if kind != "sheet" else ""
        raise InputError(f"input: {origin} holds no .npy file{where}")
    for path in paths:
        refuse_undecodable(path)
    headers, identities = _headers(paths, origin, cache)
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        if len(header.shape) != 2:
            raise InputError(
                f"{origin}: {path} has shape {header.shape}; each file holds one matrix (m, k)"
            )
        _refuse_empty(path, header.shape)
        if header.shape != first.shape or header.native != first.native:
            raise InputError(
                f"{origin}: {path} is {header.shape} of {header.native.name}, but {paths[0]} is "
                f"{first.shape} of {first.native.name}; all must be alike"
            )
    sources = tuple(
        Source(str(path), i, 1, identity)
        for i, (path, identity) in enumerate(zip(paths, identities, strict=True))
    )
    return Stack(sources, len(sources), first.shape, first.native.name)  # type: ignore[arg-type]


def _refuse_twice(
    path: Path, status: os.stat_result, seen: dict[int, Path], origin: str
) -> None:  # fmt: skip
    """Refuse a file that was reached before, by its own name or by another, or by links."""
    other = seen.setdefault(hash(state_of(status)), path)
    if other is path or not status.st_ino or state_of(os.stat(other)) != state_of(status):
        return
    what = f"names {path} twice" if other == path else f"{other} and {path} are the same file"
    raise InputError(
        f"{origin}: {what}; leave one of them out. A matrix that has to count twice needs a second "
        "file (cp)"
    )


def _refuse_empty(path: Path, shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise InputError(f"{path} has shape {shape}: there is nothing to multiply; leave it out")


def _sheet_paths(sheet: Path) -> list[Path]:
    """The column ``path`` of a sheet, relative to the working directory or the sheet's folder."""
    return [_in_row(sheet, line, name) for line, name in _sheet_cells(sheet)]


def _in_row(sheet: Path, line: int, name: str) -> Path:
    """The file that a row of a sheet names."""
    row, places = f"sheet {sheet}, line {line}: ", [Path(name), sheet.parent / name]
    try:
        for path in places if name else ():
            if mode_of(path) is not None:
                refuse_special(path, row)
                return path
    except OSError as error:
        raise InputError(f"{row}{short(name)}: {error.strerror}") from error
    looked = " and ".join(dict.fromkeys(str(path.absolute()) for path in places))
    raise InputError(f"{row}file {short(name)} does not exist; looked for {looked}")


def _sheet_cells(sheet: Path) -> Iterator[tuple[int, str]]:
    """Line and cell of the column ``path``, for every row of a sheet that is not blank."""
    try:
        with open(sheet, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter="\t", strict=True)
            columns = next(rows, [])
            if not columns:
                raise ValueError("its first line names no columns")
            if "path" not in columns:
                found = ", ".join(map(short, columns[:20]))
                raise InputError(f"sheet {sheet}: has no column 'path'; its columns are {found}")
            at = columns.index("path")
            for row in rows:
                if len(row) > len(columns):
                    raise ValueError(
                        f"line {rows.line_num} has {len(row)} columns, and the first {len(columns)}"
                    )
                if any(row):
                    yield rows.line_num, "".join(row[at : at + 1])
    except (ValueError, csv.Error, OSError) as error:
        raise InputError(
            f"sheet {sheet}: cannot be read as a .tsv table: {error!s:.300}; it must be UTF-8 "
            "text, with a line of column names and as many columns in every other line"
        ) from error


def _headers(
    paths: list[Path], origin: str, cache: Path | None
) -> tuple[list[Header], list[str]]:  # fmt: skip
    """Headers and identities of many files; headers of known identity come from the cache."""
    known, seen = _load_cache(cache), {}
    headers, identities, fresh = [], [], {}
    for path in paths:
        try:
            status = os.stat(path)
            entry = known.get(str(path))
            if entry and entry[0] == identity_of(status):
                own = entry[1]
                header = Header(tuple(own["shape"]), own["descr"], own["fortran"], own["offset"])
            else:
                header, status = read_header_and_status(path)
            _refuse_twice(path, status, seen, origin)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        headers.append(header)
        identities.append(identity_of(status))
        fresh[str(path)] = [identities[-1], {**asdict(header), "shape": list(header.shape)}]
    if cache is not None and fresh != known:
        with commit(cache) as file:
            file.write(to_keep(fresh))
    return headers, identities


def _load_cache(cache: Path | None) -> dict[str, list]:
    return (kept(cache) if cache else None) or {}


def _planned_header(source: Source) -> tuple[Header, os.stat_result]:
    """The header of a file that the plan knows; a change since then is no fault of the user's."""
    path = Path(source.path)
    try:
        _refuse_replaced(source, os.stat(path))  # first: what else is wrong follows from it
        header, status = read_header_and_status(path)
        _refuse_replaced(source, status)
        return header, status
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read any more: {error.strerror}; bring it back, or {_cure(source)}"
        ) from error
    except InputError as error:
        raise IntegrityError(f"{error}; {_cure(source)}") from error


def _refuse_replaced(source: Source, status: os.stat_result) -> None:
    if not is_as_planned(source, status):
        raise IntegrityError(
            f"{source.path}: has changed since the plan was made; run snakemake again"
        )


def _cure(source: Source) -> str:
    """What to do about a file that is not what the plan says; a copy of ours has no identity."""
    if source.identity:
        return "run snakemake again"
    return f"rm {for_bash(Path(source.path).with_suffix('.json'))}, then snakemake as before"


_Part = tuple[Path, Header, int, int]

SPARE_BYTES = 128 * PAGE
"""Room that `StackReader.read_bytes` needs beside a slab: two pages for every long extent."""


class StackReader:
    """Reads matrices of a stack, whatever files they lie in; from any thread.

    Parameters
    ----------
    inputs
        Where to note the files that are read; None for a note of its own. Those that a receipt
        vouches for are not noted.
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
        self._matrix_bytes = self._dtype.itemsize * shape[0] * shape[1]
        self._header: tuple[str, Header] | None = None
        self._converting = threading.Lock()
        self._converted: tuple[int, int, np.ndarray] | None = None
        self._space: np.ndarray | None = None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Matrices ``start`` to ``stop`` as a native C-contiguous array ``(n, m, k)``.

        Raises
        ------
        IntegrityError
            Where a file is not the one that was planned for.
        """
        block = np.empty((stop - start, *self._shape), self._dtype)
        self._fill(block, self._parts(start, stop))
        return block

    def read_bytes(
        self, reader: ExtentReader, buffer: np.ndarray, low: int, high: int
    ) -> list[np.ndarray]:
        """Bytes ``low`` to ``high`` of the stack, as little-endian elements in C order.

        Parameters
        ----------
        buffer
            Begins at a page; room for the bytes and :data:`SPARE_BYTES`.

        Returns
        -------
        list of numpy.ndarray
            Views of the buffer that follow each other in the stack.

        Raises
        ------
        IntegrityError
            Where a file is not the one that was planned for.
        """
        size = self._matrix_bytes
        start, stop = low // size, -(-high // size)
        parts = self._parts(start, stop)
        if not all(not header.fortran and header.little_endian for _, header, _, _ in parts):
            view = buffer[: high - low]
            if size > sizes.CONVERTED_BYTES:
                self._convert_rows(view, low)
            else:
                self._convert(view, low, parts, start, stop)
            return [view]
        extents, at = [], start * size
        for path, header, first, last in parts:
            begin, end = max(low, at), min(high, at + (last - first) * size)
            offset = header.offset + first * size + begin - at
            extents.append(Extent(str(path), offset, end - begin))
            at += (last - first) * size
        # Short ones are not read directly anyway; so a buffer needs little room to spare.
        packed = min(extent.nbytes for extent in extents[1:-1] or extents[:1]) < SHORT_BYTES
        return reader.read(extents, buffer, packed)

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
            at = low - start * self._matrix_bytes
            np.copyto(view, self._converted[2][at : at + view.nbytes])

    def _convert_rows(self, view: np.ndarray, low: int) -> None:
        """The same where a matrix is large: by way of some of its rows."""
        (rows, columns), done = self._shape, 0
        row = self._dtype.itemsize * columns
        height = max(1, sizes.CONVERTED_BYTES // row)
        while done < view.nbytes:
            matrix, byte = divmod(low + done, self._matrix_bytes)
            first = byte // row // height * height
            with self._converting:
                if self._converted is None or self._converted[:2] != (matrix, first):
                    self._converted = None
                    block = np.empty((1, min(height, rows - first), columns), self._dtype)
                    ((path, header, own, _),) = self._parts(matrix, matrix + 1)
                    read_matrices(path, header, own, own + 1, block, first)
                    if sys.byteorder == "big":
                        block.byteswap(inplace=True)
                    self._converted = (matrix, first, block.reshape(-1).view(np.uint8))
                raw = self._converted[2][byte - first * row :][: view.nbytes - done]
                np.copyto(view[done : done + raw.nbytes], raw)
            done += raw.nbytes

    def _parts(self, start: int, stop: int) -> list[_Part]:
        """The files that hold some matrices, checked, in the order of the stack."""
        first = bisect_right(self._firsts, start) - 1
        parts, found = [], start
        for source in islice(self._sources, max(0, first), None):
            low, high = max(start, source.first), min(stop, source.first + source.count)
            if low >= high:
                break
            header = self._checked_header(source)
            parts.append((Path(source.path), header, low - source.first, high - source.first))
            found += high - low
        if found != stop:
            raise IntegrityError(f"matrices {start} to {stop} are not in the files of the plan")
        return parts

    def _fill(self, block: np.ndarray, parts: list[_Part]) -> None:
        at, opened = 0, self.inputs.compare
        for path, header, low, high in parts:
            read_matrices(path, header, low, high, block[at : at + high - low], opened=opened)
            at += high - low

    def _checked_header(self, source: Source) -> Header:
        known = self._header  # another thread may set it to another file at any time
        if known is None or known[0] != source.path:
            header, status = _planned_header(source)
            if source.identity:
                self.inputs.note(source.path, status)
            if header.shape[-2:] != self._shape or header.native != self._dtype:
                raise IntegrityError(
                    f"{source.path}: is {header.shape} of {header.native.name}, but the plan was "
                    f"made for {self._shape} of {self._dtype.name}; {_cure(source)}"
                )
            known = self._header = (source.path, header)
        return known[1]
