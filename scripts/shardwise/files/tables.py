"""Tab-separated tables on the disk."""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from shardwise.errors import IntegrityError, short
from shardwise.files.small import checksum


def to_tsv(rows: Iterable[Any], kind: type) -> Iterator[bytes]:
    """A table of dataclass rows, in parts of some lines; quoted if a path needs it."""
    lines = itertools.chain([[f.name for f in fields(kind)]], (vars(row).values() for row in rows))
    while part := list(itertools.islice(lines, 1000)):
        # The csv module does not quote a lone carriage return, but its reader ends a line there.
        awkward = any("\r" in str(value) for line in part for value in line)
        text, dialect = io.StringIO(newline=""), csv.unix_dialect if awkward else csv.excel_tab
        csv.writer(text, dialect, delimiter="\t", lineterminator="\n").writerows(part)
        yield text.getvalue().encode("utf-8", "surrogateescape")


def from_tsv(raw: bytes, kind: type, path: Path) -> list[Any]:
    """The rows of a table; IntegrityError if damaged."""
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


def check(raw: bytes, checksums: Mapping[str, str], path: Path) -> None:
    """Refuse a file of a plan whose checksum is not the one in ``checksums``."""
    if checksums.get(path.name) != checksum(raw):
        words = "changed by hand, or damaged); remove both and start the run again"
        raise IntegrityError(f"{path} does not match its plan.json ({words}")
