"""The files that a reduce writes, by all its ranks: without their names until all is there."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shardwise.errors import writing
from shardwise.files.checksum import piece_digest, raw_bytes
from shardwise.files.commit import create_private, publish, remove_leftovers, temporary_for
from shardwise.files.npy import DATA_OFFSET, StackWriter
from shardwise.plan.plan import Plan
from shardwise.plan.problem import (
    ITEM_BYTES,
    statistic_dtype,
    statistic_pieces,
    statistic_shape,
)
from shardwise.records import receipts
from shardwise.records.receipts import ArrayFile


class ResultFiles:
    """One temporary file per statistic.

    Attributes
    ----------
    digests
        What the pieces that this rank wrote come to, of each file: uint8 ``(statistics, 16)``.
    """

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        self._results, self._problem = plan.results, plan.problem
        item, kind = ITEM_BYTES[plan.element_type], plan.problem.product_dtype
        self._dtypes = {name: np.dtype(statistic_dtype(name, kind)) for name in names}
        self._cuts = {name: statistic_pieces(name, plan.problem, item) for name in names}
        self._open: dict[str, BinaryIO] = {}
        self._files: dict[str, Path] = {}
        self.digests = np.zeros((len(names), 16), np.uint8)

    def create(self) -> dict[str, Path]:
        """Make the files, at their full size; one rank does, and tells the others where."""
        for name, dtype in self._dtypes.items():
            path = self._results.statistic(name)
            remove_leftovers(path.parent, path.name)
            temporary = temporary_for(path)
            with writing(path), open(temporary, "w+b", opener=create_private) as file:
                self._files[name] = temporary
                StackWriter(file, statistic_shape(name, self._problem), dtype)
        return self._files

    def open(self, files: Mapping[str, Path]) -> None:
        """Open what one rank has made."""
        self._files |= files
        for name, path in files.items():
            self._open[name] = open(path, "r+b", buffering=0)  # noqa: SIM115

    def path(self, name: str) -> Path:
        """Where a file lies until it is published."""
        return self._files[name]

    def read(self, name: str) -> np.ndarray:
        """The flat elements of a file that all ranks have closed, mapped."""
        shape = math.prod(statistic_shape(name, self._problem))
        return np.memmap(self._files[name], self._dtypes[name], "r", DATA_OFFSET, (shape,))

    def write(self, found: Mapping[str, np.ndarray], low: int) -> None:
        """Write one stripe of some results, from element ``low`` on: whole pieces of checksums."""
        for row, (name, dtype) in zip(self.digests, self._dtypes.items(), strict=True):
            if name not in found:
                continue
            whole, piece = self._cuts[name]
            for array, elements in enumerate(np.atleast_2d(found[name])):  # one, or one per label
                raw = raw_bytes(np.ascontiguousarray(elements, dtype))
                at, number, digest = low * dtype.itemsize, array * -(-whole // piece), 0
                for begin in range(0, raw.nbytes, piece):
                    own = number + (at + begin) // piece
                    digest ^= piece_digest(raw[begin : begin + piece], own)
                np.bitwise_xor(row, np.frombuffer(digest.to_bytes(16, "big"), np.uint8), out=row)
                with writing(self._results.statistic(name)):
                    offset = DATA_OFFSET + array * whole + at
                    _write_fully(self._open[name].fileno(), raw, offset)

    def close(self) -> None:
        """Flush and close the files, so that ranks on other nodes see what was written."""
        while self._open:
            name, file = self._open.popitem()
            with writing(self._results.statistic(name)), file:
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Close and remove the files, as far as they have no names."""
        for file in self._open.values():
            file.close()
        for path in self._files.values():
            with suppress(OSError):
                path.unlink()

    def publish(self, digests: np.ndarray) -> dict[str, ArrayFile]:
        """Give the files their names; what ``summary.json`` says of each."""
        facts: dict[str, Any] = {}
        for row, (name, dtype) in zip(digests, self._dtypes.items(), strict=True):
            path, temporary = self._results.statistic(name), self._files[name]
            with writing(path), open(temporary, "rb") as file:
                publish(file, temporary, path)
            facts[name] = receipts.describe_file(
                path, statistic_shape(name, self._problem), dtype.name,
                row.tobytes().hex(), *self._cuts[name],
            )  # fmt: skip
        return facts


def _write_fully(file: int, raw: np.ndarray, offset: int) -> None:
    view = memoryview(raw)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
