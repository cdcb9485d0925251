"""Where the matrices lie: a stack, a folder, a glob, a sheet, or the synthetic stack."""

import csv
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, replace
from glob import has_magic
from pathlib import Path
from typing import Any

from shardwise import ALGORITHM
from shardwise.errors import InputError, short, some
from shardwise.files.formats import registry
from shardwise.files.formats.names import file_of
from shardwise.files.lookup import absent, matches, mode_of, refuse_undecodable, shown
from shardwise.files.npy import Header, read_header
from shardwise.files.small import read_cache, refuse_special, write_cache
from shardwise.plan import memory
from shardwise.plan.config import Settings
from shardwise.plan.identity import identity_of, state_of
from shardwise.plan.plan import Source, Stack
from shardwise.plan.problem import factor_shapes, function_parts
from shardwise.units import human_bytes

_MOST_CHUNK_BYTES = 1 << 30  # a task holds several while it decodes


def stack_of(settings: Settings, synthetic: Path, cache: Path | None = None) -> Stack:
    """Find and check the input that the config names, from headers alone.

    ``synthetic`` is where the synthetic stack lies or will lie; the file ``cache`` keeps headers by
    path and identity, for inputs of many files.
    """
    if settings.input is None:
        return _synthetic_stack(settings, synthetic)
    try:
        stack = _stack_on_disk(settings, cache)
    except OSError as error:  # such as a name that is too long, or a folder that is closed to us
        culprit = error.filename or settings.input
        where = "" if str(culprit) == settings.input else f" ({shown(culprit)})"
        raise InputError(f"input: {settings.input}: {error.strerror}{where}") from error
    if stack.unwritten and settings.missing_chunks == "error":
        raise InputError(
            f"input: {stack.unwritten}, which missing_chunks: error refuses; write them, copy the "
            "array again, or set missing_chunks: fill"
        )
    return stack


def _stack_on_disk(settings: Settings, cache: Path | None) -> Stack:
    assert settings.input is not None
    if array := registry.locate(settings.input):
        return _one_stack(Path(array), "input")
    path = Path(file_of(settings.input))
    mode = mode_of(path)
    if mode is None and has_magic(settings.input):
        files = [Path(registry.locate(str(path)) or path) for path in matches(settings.input)]
        return _stack_of_files(files, f"glob {settings.input}", cache)
    if mode is None:
        raise InputError(f"input: {absent(path)}")
    if stat.S_ISDIR(mode):
        files = sorted(p for p in path.iterdir() if p.suffix == ".npy")
        shown_files = [p for p in files if p.name[0] != "."]
        stack = _stack_of_files(shown_files, f"folder {path}", cache)
        return replace(stack, left_out=_left_out(path, [p for p in files if p.name[0] == "."]))
    refuse_special(path, "input: ")
    if path.suffix == ".tsv":
        files = [_in_row(path, line, name) for line, name in _sheet_cells(path)]
        return _stack_of_files(files, f"sheet {path}", cache)
    return _one_stack(path, "input")


def right_of(settings: Settings, left: Stack) -> tuple[Stack | None, bool]:
    """The right factor of ``A @ B``, or None, and whether one matrix serves all."""
    if settings.right is None:
        return None, False
    path = Path(settings.right)
    if registry.locate(settings.right):
        raise InputError(f"right: {path} is no .npy file, which B has to be; use numpy.save")
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
            f"right: {path} holds {stack.dtype}, but the input holds {left.dtype}; save both "
            "with one dtype"
        )
    return stack, len(header.shape) == 2


def check_product(product: str, left: Stack, right: Stack | None) -> None:
    """Refuse factors whose inner dimensions do not match."""
    if function_parts(product):
        return
    (_, k), (rows, _) = factor_shapes(product, left.shape, right.shape if right else None)
    if k == rows:
        return
    if right is None:
        raise InputError(
            f"product A @ A needs square matrices, but the input's are {left.shape} @ "
            f"{left.shape}; use A.T @ A or A @ A.T"
        )
    raise InputError(
        f"product {product}: inner dimensions do not match: A is {left.shape}, B is "
        f"{right.shape}; B must have {k} rows"
    )


def _synthetic_stack(settings: Settings, path: Path) -> Stack:
    recipe = settings.synthetic
    count, dim, dtype = recipe["matrices"], recipe["dim"], recipe["dtype"]
    identity = json.dumps([recipe, ALGORITHM["synthesize"]], sort_keys=True)
    source = Source(str(path), 0, count, identity)
    return Stack((source,), count, (dim, dim), dtype)


def _one_stack(path: Path, key: str) -> Stack:
    header, status = registry.read_header_and_status(str(path))
    if len(header.shape) != 3:
        other = "one B for all has two" if key == "right" else "for 2-D files, name their folder"
        raise InputError(
            f"{key}: {path} has shape {header.shape}; a stack has three dimensions (N, m, k); "
            f"{other}"
        )
    _refuse_empty(path, header.shape)
    n, m, k = header.shape
    source = Source(str(path), 0, n, identity_of(file_of(str(path)), status))
    decoded, unwritten = _decoded_bytes(path, header), _unwritten([path], [header])
    return Stack((source,), n, (m, k), header.native.name, decoded, unwritten)


def _unwritten(paths: list[Path], headers: list[Header]) -> str:
    """How many chunks are missing in some arrays, and what they count as; empty if none are."""
    lacking = [
        (path, header) for path, header in zip(paths, headers, strict=True) if header.missing
    ]
    if not lacking:
        return ""
    missing, chunks = (sum(getattr(h, key) for _, h in lacking) for key in ("missing", "chunks"))
    others = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
    fills = " or ".join(dict.fromkeys(header.fill for _, header in lacking))
    return (
        f"{missing:,} of {chunks:,} chunks of {lacking[0][0]}{others} were never written; they "
        f"count as {fills}"
    )


def _left_out(folder: Path, hidden: list[Path]) -> str:
    """Which files of a folder do not count, as their names begin with a dot; empty if none do."""
    names = some([shown(path.name) for path in hidden], 5)
    return f"hidden files of {folder} are left out: {names}" if hidden else ""


def _decoded_bytes(path: Path, header: Header) -> int:
    """Bytes that a task holds of the chunks of an array; 0 if it has none."""
    nbytes = math.prod(header.chunk) * header.dtype.itemsize
    if nbytes > _MOST_CHUNK_BYTES:
        raise InputError(
            f"{path} is stored in chunks {header.chunk} of {human_bytes(nbytes)}, each of which is "
            f"decoded as a whole; write it with chunks of {human_bytes(_MOST_CHUNK_BYTES)} or less"
        )
    shape: Any = header.shape[-2:]
    return memory.decoded_bytes(header.chunk, shape, header.dtype.itemsize) if header.chunk else 0


def _stack_of_files(paths: list[Path], origin: str, cache: Path | None) -> Stack:
    """Many 2-D files as one stack, in the order given."""
    if not paths:
        kind, _, name = origin.partition(" ")
        where = f" (looked in {Path(name).absolute()})" if kind != "sheet" else ""
        raise InputError(f"input: {origin} contains no .npy file{where}")
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
                f"{first.shape} of {first.native.name}; all must have one shape and dtype"
            )
    sources = tuple(
        Source(str(path), i, 1, identity)
        for i, (path, identity) in enumerate(zip(paths, identities, strict=True))
    )
    decoded, shape = max(map(_decoded_bytes, paths, headers)), first.shape
    unwritten = _unwritten(paths, headers)
    return Stack(sources, len(sources), shape, first.native.name, decoded, unwritten)  # type: ignore[arg-type]


def _refuse_twice(
    path: Path, status: os.stat_result, place: int, inodes: dict[int, Path], origin: str
) -> None:
    """Refuse an array that was reached before, by its own name or by another, or by links."""
    other = inodes.setdefault(hash((state_of(status), place)), path)
    state = state_of(os.stat(file_of(str(other)))) if other is not path else ()
    if other is path or not status.st_ino or state != state_of(status):
        return
    what = f"{path} is listed twice" if other == path else f"{other} and {path} are the same file"
    raise InputError(
        f"{origin}: {what}; leave one of them out. To count a matrix twice, copy its file (cp)"
    )


def _refuse_empty(path: Path, shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise InputError(f"{path} has shape {shape}: there is nothing to multiply; leave it out")


def _in_row(sheet: Path, line: int, name: str) -> Path:
    """The file that a row of a sheet names: from the working directory, or beside the sheet."""
    row, places = f"sheet {sheet}, line {line}: ", [Path(name), sheet.parent / name]
    try:
        for path in places if name else ():
            if array := registry.locate(str(path)):
                return Path(array)
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
                names = ", ".join(map(short, columns[:20]))
                raise InputError(f"sheet {sheet} has no column 'path'; its columns are {names}")
            at = columns.index("path")
            for row in rows:
                if len(row) > len(columns):
                    raise ValueError(
                        f"line {rows.line_num} has {len(row)} columns, but line 1 has "
                        f"{len(columns)}"
                    )
                if any(row):
                    yield rows.line_num, "".join(row[at : at + 1])
    except (ValueError, csv.Error, OSError) as error:
        raise InputError(
            f"sheet {sheet} cannot be read as a .tsv table: {error!s:.300}; it must be UTF-8 "
            "text, with a line of column names and as many columns in every other line"
        ) from error


def _headers(paths: list[Path], origin: str, cache: Path | None) -> tuple[list[Header], list[str]]:
    """Headers and identities of many files; headers of known identity come from the cache."""
    cached: dict[str, list[Any]] = read_cache(cache) or {}
    inodes: dict[int, Path] = {}
    headers, identities, fresh = [], [], {}
    for path in paths:
        try:
            file = file_of(str(path))
            status = os.stat(file)
            identity, entry = identity_of(file, status), cached.get(str(path))
            if entry and entry[0] == identity:
                listed = {key: tuple(entry[1].get(key, ())) for key in ("shape", "chunk")}
                header = Header(**{**entry[1], **listed})
            else:
                header, status = registry.read_header_and_status(str(path))
                identity = identity_of(file, status)
            _refuse_twice(path, status, header.place, inodes, origin)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        headers.append(header)
        identities.append(identity)
        fresh[str(path)] = [identity, json.loads(json.dumps(asdict(header)))]
    if cache is not None and fresh != cached:
        write_cache(cache, fresh)
    return headers, identities
