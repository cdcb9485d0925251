"""Where the matrices lie: a stack, a folder, a glob, a sheet, or the synthetic stack."""

import csv
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import Any

import msgspec

from shardwise import ALGORITHM
from shardwise.errors import InputError, short, some
from shardwise.files import lookup, remote
from shardwise.files.commit import commit
from shardwise.files.formats import registry
from shardwise.files.lookup import ZARR, Status, file_of, split
from shardwise.files.npy import Header, read_header
from shardwise.plan.config import Settings
from shardwise.plan.plan import Source
from shardwise.plan.stack import Stack, decoded_bytes
from shardwise.units import human_bytes

_ASKED_AT_ONCE = 16  # files or objects of a store, as each answer may take a while
_MOST_CHUNK_BYTES = 1 << 30  # a task holds several while it decodes
_Array = tuple[str, Header, Status]  # its name, and the status of its file


def stack_of(settings: Settings, synthetic: Path, cache: Path | None = None) -> Stack:
    """The input that the config names, checked; headers of its files are kept in ``cache``."""
    if settings.input is None:
        wanted, dim = settings.synthetic, settings.synthetic["dim"]
        identity = json.dumps([wanted, ALGORITHM["synthesize"]], sort_keys=True)
        source = Source(str(synthetic), 0, wanted["matrices"], identity)
        return Stack((source,), source.count, (dim, dim), wanted["dtype"])
    try:
        return _stack_of(*_named(settings.input), cache)
    except OSError as error:  # such as a name that is too long, or a folder that is closed to us
        raise InputError(f"input: {error!s:.400}") from error


def _named(name: str) -> tuple[list[str], str]:
    """The arrays that an input stands for, and what it is, for messages."""
    if remote.is_url(name):
        if name.endswith("/") and not file_of(name).endswith(ZARR):
            return _in_folder(name, remote.listing(name)), f"folder {name}"
    elif registry.locate(name) is None:
        path = Path(file_of(name))
        mode = lookup.mode_of(path)
        if mode is None:
            if not has_magic(name):
                raise InputError(f"input: {lookup.absent(path)}")
            return _matched(name), f"glob {name}"
        if stat.S_ISDIR(mode):
            return _in_folder(str(path), os.listdir(path)), f"folder {path}"
        if path.suffix == ".tsv":
            rows = [_in_row(path, line, cell) for line, cell in _sheet_cells(path)]
            if not rows:
                raise InputError(f"input: sheet {path} has no rows; name one array in each line")
            return rows, f"sheet {path}"
    return [_located(name)], "input"


def _located(name: str) -> str:
    """The name of an array in the plan, which may be longer than the name that the user gave."""
    found = registry.locate(name) or name
    return found if remote.is_url(found) else str(Path(found))


def labels_of_sheet(settings: Settings, stack: Stack) -> list[str] | None:
    """The label of each matrix, if the config names a column of the sheet that is its input."""
    begin, _, column = (settings.labels or "").partition(":")
    if begin != "column":
        return None
    sheet = Path(settings.input or "")
    cells = _sheet_cells(sheet, column) if sheet.suffix == ".tsv" else ()
    labels = {line: cell.strip() for line, cell in cells}
    if bare := [line for line, label in labels.items() if not label]:
        words = f"the column {column} is empty in line {bare[0]}; write a label"
        raise InputError(f"labels: sheet {sheet}: {words}")
    if len(labels) != len(stack.sources):
        words = "names a column, but the input is no sheet (.tsv); save the labels as a .npy file"
        raise InputError(f"labels: {settings.labels} {words}")
    rows = zip(labels.values(), stack.sources, strict=True)
    return [label for label, source in rows for _ in range(source.count)]


def right_of(settings: Settings, left: Stack) -> tuple[Stack | None, bool]:
    """The right factor of ``A @ B``, or None, and whether one matrix serves all."""
    if settings.right is None:
        return None, False
    path = Path(settings.right)
    with lookup.reading(Path(file_of(settings.right)), "right: "):
        if registry.locate(settings.right):
            raise InputError(f"right: {path} is not a .npy file, but B must be; use numpy.save")
        shared = len(read_header(path).shape) == 2
    stack = _stack_of([str(path)], "right")
    if stack.dtype != left.dtype or not (shared or stack.matrices == left.matrices):
        cure = f"save {left.matrices} of {left.dtype}, as the input has, or one 2-D matrix for all"
        raise InputError(f"right: {path} holds {stack.matrices} of {stack.dtype}; {cure}")
    return stack, shared


def _matched(pattern: str) -> list[str]:
    """The arrays that a pattern names, such as ``frames/*.h5:/entry/frames``; refused if none."""
    # split() cuts only after suffixes that it knows.
    for file, _, inside in ((split(pattern)[0], ":", split(pattern)[1]), pattern.rpartition(":")):
        if file and (found := lookup.matches(file)):
            return [_located(f"{path}:{inside}" if inside else str(path)) for path in found]
    cure = "an array in each file is named after a colon, such as frames/*.h5:/entry/frames"
    raise InputError(f"input: glob {pattern} matches nothing ({Path(pattern).absolute()}); {cure}")


def _in_folder(folder: str, names: list[str]) -> list[str]:
    """The ``.npy`` files of a folder, or, if it has none, its Zarr stores."""
    entries = lookup.in_order(map(Path, names))
    for end in (".npy", *ZARR):
        taken = [p for p in entries if p.suffix.lower() == end and p.name[0] != "."]
        if taken:
            return [_located(os.path.join(folder, path)) for path in taken]
    found = f"no .npy file and no .zarr store, but {some(map(str, entries), 3) or 'nothing'}"
    cure = "name other formats by a glob and the array inside, such as frames/*.h5:/entry/frames"
    raise InputError(f"input: folder {folder} holds {found}; {cure}")


def _in_row(sheet: Path, line: int, name: str) -> str:
    """The array that a row of a sheet names, relative to the working directory or to the sheet."""
    try:
        if wrong := remote.problem(name):
            raise InputError(wrong)
        if remote.is_url(name):
            return _located(name)
        for place in (name, str(sheet.parent / name)) if name else ():
            if lookup.mode_of(Path(place)) is not None or registry.locate(place):
                return _located(place)
        raise InputError(f"{lookup.absent(Path(name)):.300}, and is not next to the sheet either")
    except (InputError, OSError) as error:  # the latter if the name is too long
        raise InputError(f"sheet {sheet}, line {line}: {error!s:.400}") from error


def _sheet_cells(sheet: Path, column: str = "path") -> Iterator[tuple[int, str]]:
    """Line and cell of a column, for every row of a sheet that is not blank."""
    try:
        with lookup.reading(sheet, "input: sheet "), open(sheet, encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, delimiter="\t", strict=True)
            columns = list(rows.fieldnames or ())
            if columns.count(column) != 1:
                have = some(columns) or "none"
                raise ValueError(f"it needs one column {short(column)}, but has {have}")
            for row in rows:
                if None in row:
                    raise ValueError(f"line {rows.line_num} has more columns than line 1")
                if any(row.values()):
                    yield rows.line_num, row[column] or ""
    except (ValueError, csv.Error) as error:
        words = "write UTF-8 text, with column names in line 1, and tabs between columns"
        raise InputError(f"sheet {sheet} cannot be read: {error!s:.300}; {words}") from error


def _stack_of(paths: Sequence[str], origin: str, cache: Path | None = None) -> Stack:
    """Arrays as one stack, in the order given; each of them holds one matrix or a stack."""
    try:
        arrays = _look(paths, cache)
    except InputError as error:  # about one array: it may not name the sheet or glob
        words = str(error)
        raise InputError(words if words.startswith(origin) else f"{origin}: {words}") from error
    top, head, *_ = arrays[0]
    sources, matrices, seen = list[Source](), 0, dict[Any, str]()
    for path, header, status in arrays:
        twin, wrong, shape = seen.setdefault((status.place, header.place), path), "", header.shape
        if len(seen) == len(sources):
            wrong = f"is the same file as {twin}; leave one out, or copy it to count it twice"
        elif len(shape) != 3 and not (len(shape) == 2 and origin != "input"):
            other = "name a folder of 2-D files" if origin == "input" else "a matrix (m, k)"
            wrong = f"has shape {shape}; write it as a stack (N, m, k), or {other}"
        elif 0 in shape:
            wrong = f"has shape {shape}, so there is nothing to multiply; leave it out"
        elif shape[-2:] != head.shape[-2:] or header.native != head.native:
            wrong = f"is {shape} of {header.native.name}, but {top} is {head.shape} of "
            wrong += f"{head.native.name}; convert it to the same (m, k) and dtype, or leave it out"
        elif (most := math.prod(header.chunk) * header.dtype.itemsize) > _MOST_CHUNK_BYTES:
            wrong = f"has chunks {short(header.chunk)} of {human_bytes(most)}, too large to "
            wrong += f"decode; write it with chunks of {human_bytes(_MOST_CHUNK_BYTES)} or less"
        if wrong:
            raise InputError(f"{origin}: {path} {wrong}")
        sources.append(Source(path, matrices, header.matrices, status.identity))
        matrices += header.matrices
    shape, named = (head.shape[-2], head.shape[-1]), [(path, header) for path, header, *_ in arrays]
    chunked = [header for _, header in named if header.chunk]
    return Stack(
        tuple(sources), matrices, shape, head.native.name,
        max(map(decoded_bytes, chunked), default=0),
        *max(map(_why_copied, named)), _unwritten([each for each in named if each[1].missing]),
    )  # fmt: skip


def _why_copied(array: tuple[str, Header]) -> tuple[bool, str]:
    """Whether an array cannot be read in place, and why it is better copied; no reason if not."""
    path, header = array
    if remote.is_url(path):
        return True, f"{path} is in an object store, from which each byte is read only once"
    if header.chunk:
        kind = "in chunks, which have" if header.chunks else "as bfloat16, which has"
        return True, f"{path} is stored {kind} to be decoded first"
    return False, f"{path} has its elements in another order" if header.reordered else ""


def _unwritten(lacking: Sequence[tuple[str, Header]]) -> str:
    """How many chunks some arrays lack, and what they count as; empty if there are none."""
    if not lacking:
        return ""
    missing, chunks = (sum(getattr(h, key) for _, h in lacking) for key in ("missing", "chunks"))
    fills = " or ".join(dict.fromkeys(header.fill for _, header in lacking))
    told = f"input: {missing:,} of {chunks:,} chunks of {some([name for name, _ in lacking], 3)}"
    return f"{told} were never written; they count as {fills}"


def _look(paths: Sequence[str], cache: Path | None) -> list[_Array]:
    """All arrays, with headers and identities; headers of unchanged files come from the cache."""
    cached: dict[str, tuple[str, Header]] = {}
    if cache is not None:
        with suppress(OSError, ValueError):  # there is none, or it is damaged
            cached = msgspec.json.decode(cache.read_bytes(), type=dict[str, tuple[str, Header]])

    def look_at(path: str) -> _Array:
        lookup.refuse_undecodable(path)
        file, (known, header) = file_of(path), cached.get(path, ("", None))
        try:
            if header and known == (status := registry.status_of(file)).identity:
                return path, header, status
            return path, *registry.read_header_and_status(path)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        apply = pool.map if any(map(remote.is_url, paths)) else map
        arrays = list(apply(look_at, paths))
    fresh = {path: (status.identity, header) for path, header, status in arrays}
    if cache is not None and fresh != cached:
        with suppress(OSError), commit(cache) as file:
            file.write(msgspec.json.encode(fresh))
    return arrays
