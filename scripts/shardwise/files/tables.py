"""Tab-separated tables on the disk; of a long table, only the requested parts are read."""

import csv
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from shardwise.errors import IntegrityError, short
from shardwise.files.small import checksum

ROWS_AT_ONCE = 1000

Part = tuple[int, str]
"""Up to `ROWS_AT_ONCE` lines of a table: the byte at which they end, and their checksum."""


def to_tsv(rows: Iterable[Any], kind: type) -> Iterator[bytes]:
    """A table of dataclass rows, in parts of `ROWS_AT_ONCE` lines; quoted if a path needs it."""
    lines = itertools.chain([[f.name for f in fields(kind)]], (vars(row).values() for row in rows))
    while part := list(itertools.islice(lines, ROWS_AT_ONCE)):
        # The csv module does not quote a lone carriage return, but its reader ends a line there.
        awkward = any("\r" in str(value) for line in part for value in line)
        text = io.StringIO(newline="")
        csv.writer(
            text, delimiter="\t", lineterminator="\n",
            quoting=csv.QUOTE_ALL if awkward else csv.QUOTE_MINIMAL,
        ).writerows(part)  # fmt: skip
        yield text.getvalue().encode("utf-8", "surrogateescape")


def from_tsv(raw: bytes, kind: type, path: Path) -> list[Any]:
    """The rows of a table, or of its first and some other parts; IntegrityError if damaged."""
    text = io.StringIO(raw.decode("utf-8", "surrogateescape"), newline="")
    reader = csv.reader(text, delimiter="\t")
    names, types = zip(*((column.name, column.type) for column in fields(kind)), strict=True)
    try:
        if tuple(next(reader, ())) != names:
            raise ValueError("other columns")
        return [kind(*(of(v) for of, v in zip(types, row, strict=True))) for row in reader]
    except (ValueError, csv.Error) as error:
        words = f"{path} is damaged ({short(error)}); remove it and start the run again"
        raise IntegrityError(words) from error


def describe_parts(parts: list[bytes]) -> list[Part]:
    """What a plan records of the parts of a table; empty if the table is a single part."""
    ends = itertools.accumulate(map(len, parts))
    return list(zip(ends, map(checksum, parts), strict=True)) if len(parts) > 1 else []


def read_parts(path: Path, parts: list[Part], numbers: Iterable[int]) -> bytes:
    """The first part of a table, with the column names, and others by number; all are checked."""
    raw = b""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != parts[-1][0]:
            raise _changed(path)
        for number in sorted({0, *numbers}):
            begin, (end, digest) = parts[number - 1][0] if number else 0, parts[number]
            file.seek(begin)
            part = file.read(end - begin)
            check(part, {path.name: digest}, path)
            raw += part
    return raw


def check(raw: bytes, checksums: Mapping[str, str], path: Path) -> None:
    """Refuse a file of a plan whose checksum is not the one in ``checksums``."""
    if checksums.get(path.name) != checksum(raw):
        raise _changed(path)


def _changed(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path} does not match its plan.json (changed by hand, or damaged); remove both and "
        "start the run again"
    )
