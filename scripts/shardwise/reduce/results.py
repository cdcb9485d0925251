"""The files of a sum, which all ranks of a reduce write: without their names until all is there."""

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from shardwise.errors import writing
from shardwise.files.checksum import PieceChecksum, raw_bytes
from shardwise.files.commit import create_private, publish, remove_leftovers, temporary_for
from shardwise.files.npy import DATA_OFFSET, StackWriter, write_fully
from shardwise.files.paths import Results
from shardwise.plan.problem import Problem, statistic_dtype, statistic_pieces, statistic_shape
from shardwise.records import receipts
from shardwise.records.receipts import ArrayFile


class ResultFiles:
    """One temporary file per statistic; each rank opens all of them.

    What is added are numbers of ``item`` bytes.
    """

    def __init__(self, results: Results, problem: Problem, item: int, names: Iterable[str]) -> None:
        self._summary = results.summary
        self._paths = {name: results.statistic(name) for name in names}
        self._shapes = {name: statistic_shape(name, problem) for name in names}
        self._dtypes, self._hashed = dict[str, np.dtype](), dict[str, PieceChecksum]()
        for name, shape in self._shapes.items():
            dtype = self._dtypes[name] = np.dtype(statistic_dtype(name, problem.product_dtype))
            total = math.prod(shape) * dtype.itemsize
            self._hashed[name] = PieceChecksum(total, *statistic_pieces(name, problem, item))
        self._open: dict[str, BinaryIO] = {}
        self._files: dict[str, Path] = {}

    def create(self) -> dict[str, Path]:
        """Make the files, at their full size; one rank does, and tells the others where."""
        for name, path in self._paths.items():
            remove_leftovers(path.parent, path.name)
            temporary = temporary_for(path)
            with writing(path), open(temporary, "w+b", opener=create_private) as file:
                self._files[name] = temporary
                StackWriter(file, self._shapes[name], self._dtypes[name])
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
        size = math.prod(self._shapes[name])
        return np.memmap(self._files[name], self._dtypes[name], "r", DATA_OFFSET, (size,))

    def write(self, found: Mapping[str, np.ndarray], low: int) -> None:
        """Write one stripe of some results, from element ``low`` on.

        Of several ranks each writes whole pieces of checksums.
        """
        for name in found.keys() & self._paths.keys():
            hashed, dtype = self._hashed[name], self._dtypes[name]
            for number, elements in enumerate(np.atleast_2d(found[name])):  # or one per label
                raw = raw_bytes(np.ascontiguousarray(elements, dtype))
                at = number * hashed.row_bytes + low * dtype.itemsize
                hashed.update(at, raw)
                with writing(self._paths[name]):
                    write_fully(self._open[name], at, raw)

    def close(self) -> None:
        """Flush and close the files, so that ranks on other nodes see what was written."""
        while self._open:
            name, file = self._open.popitem()
            with writing(self._paths[name]), file:
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Close and remove the files, as far as they have no names."""
        for file in self._open.values():
            file.close()
        for path in self._files.values():
            with suppress(OSError):
                path.unlink()

    @property
    def digests(self) -> np.ndarray:
        """What this rank wrote of each file comes to: uint8 ``(statistics, 16)``."""
        return np.array([hashed.digest for hashed in self._hashed.values()])

    def refuse_incomplete(self) -> None:
        """Refuse files of which this rank alone has not written each piece once."""
        for hashed in self._hashed.values():
            hashed.hexdigest()

    def publish(self, digests: np.ndarray) -> dict[str, ArrayFile]:
        """Give the files their names; what ``summary.json`` says of each, with all digests.

        The one before vouches for the files before, and goes.
        """
        facts = {}
        for row, (name, path) in zip(digests, self._paths.items(), strict=True):
            with writing(path), open(self._files[name], "rb") as file:
                publish(file, self._files[name], path, self._summary)
            hashed = self._hashed[name]
            facts[name] = receipts.describe_file(
                path, self._shapes[name], self._dtypes[name].name,
                row.tobytes().hex(), hashed.row_bytes, hashed.piece_bytes,
            )  # fmt: skip
        return facts
