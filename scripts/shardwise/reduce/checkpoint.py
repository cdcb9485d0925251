"""Work of a reduce that has not finished: what a killed one leaves for the next.

A long reduce commits what it has, now and then, to ``partial/``. A *checkpoint* holds the states of
a stripe after some of its units, or the list of stripes whose results stand in the unfinished files
beside it, and its part of the shards' checksums. It depends on no order and no ranks, so the next
reduce may have other ranks. Those of another plan, other statistics or other products are removed;
what no reduce wrote never is.
"""

import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from shardwise.errors import IntegrityError
from shardwise.files.checksum import raw_bytes
from shardwise.files.commit import commit
from shardwise.files.partial import _SUFFIX, _entries, _written
from shardwise.records.receipts import Whole
from shardwise.reduce.layout import Run, overlap
from shardwise.reduce.peers import allocate_arrays, describe_arrays

log = logging.getLogger(__name__)

_UNUSABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, IntegrityError)
"""What reading a record that is damaged ends with."""


@dataclass
class Checkpoint:
    """What some ranks have done.

    ``runs`` are the units of ``stripe`` that went into the states. Or ``finished`` are the stripes
    whose results are written, and there are no runs.
    """

    runs: list[Run] = field(default_factory=list)
    stripe: int = -1
    finished: list[int] = field(default_factory=list)
    path: Path | None = None

    def arrays(self) -> list[np.ndarray]:
        """The states, and what else was saved."""
        return _load(self.path)[1]


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """The first line of a checkpoint's file."""

    digest: str
    checksum: str
    runs: list[tuple[Whole, Whole]]
    stripe: Annotated[int, Meta(ge=-1)]
    finished: list[Whole]


class CheckpointFolder:
    """The folder of unfinished work; ``digest`` is of all that the result depends on."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self._digest = folder, digest

    def file(self, name: str) -> Path:
        """The unfinished file of a result."""
        return self.folder / f"{name}.npy"

    def save(self, name: str, record: Checkpoint, arrays: Iterable[np.ndarray]) -> None:
        """Commit a record, in place of the one of the same name."""
        arrays = [np.asarray(array, order="C") for array in arrays]
        checksum = xxhash.xxh3_128()
        for array in arrays:
            checksum.update(raw_bytes(array))
        facts = {"digest": self._digest, "checksum": checksum.hexdigest()}
        facts |= {k: v for k, v in asdict(record).items() if k != "path"}
        with commit(self.folder / f"{name}{_SUFFIX}") as file:
            file.write(f"{json.dumps(facts)}\n{describe_arrays(arrays)}\n".encode())
            for array in arrays:
                file.write(raw_bytes(array))

    def remove(self, name: str) -> None:
        """Remove a record that another one replaces."""
        (self.folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)

    def records(self) -> list[Checkpoint]:
        """The records that fit, no unit twice; all others are removed."""
        found, taken = [], []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            try:
                header, _ = _load(path)
                if header.digest != self._digest:
                    raise IntegrityError("is of another plan, or of other products")
                if any(first >= last for first, last in header.runs):
                    raise IntegrityError("holds no units and no stripes")
                found.append(Checkpoint(header.runs, header.stripe, header.finished, path))
            except _UNUSABLE as error:
                log.info("reduce: %s is not used: %s", path, error)
                path.unlink(missing_ok=True)
        # What has more is newer: a record that is replaced may still be there for a moment.
        for record in sorted(found, key=_size, reverse=True):
            if any(_twice(record, other) for other in taken):
                record.path.unlink(missing_ok=True)
            else:
                taken.append(record)
        return taken

    def clear(self) -> None:
        """Remove all that reduces wrote, and the folder where nothing else lies in it."""
        for path in _entries(self.folder):
            if _written(path):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # not there, or not empty: the next reduce names what lies there
            self.folder.rmdir()


def _size(record: Checkpoint) -> tuple[int, int]:
    return len(record.finished), sum(last - first for first, last in record.runs)


def _twice(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two records hold something in common."""
    if one.finished or other.finished:
        own = {*one.finished, one.stripe}
        return bool(own & {*other.finished, other.stripe} - {-1})
    return one.stripe == other.stripe and overlap(one.runs, other.runs)


def _load(path: Path) -> tuple[_Header, list[np.ndarray]]:
    checksum = xxhash.xxh3_128()
    with open(path, "rb") as file:
        header = msgspec.json.decode(file.readline(), type=_Header)
        text = file.readline().decode()
        arrays = allocate_arrays(text, os.fstat(file.fileno()).st_size - file.tell())
        for array in arrays:
            file.readinto(raw_bytes(array))
            checksum.update(raw_bytes(array))
    if checksum.hexdigest() != header.checksum:
        raise IntegrityError("is damaged")
    return header, arrays
