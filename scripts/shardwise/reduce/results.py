"""The files of a sum, written by all ranks of a reduce; they get their names once all are whole."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import writing
from shardwise.files.checksum import raw_bytes
from shardwise.files.commit import create, publish, remove_leftovers, temporary_for
from shardwise.files.npy import StackWriter
from shardwise.files.paths import Results
from shardwise.plan.problem import Problem, statistic_dtype
from shardwise.records import receipts
from shardwise.records.receipts import ArrayFile


class ResultFiles:
    """A ``temporary`` file per statistic; numbers that are added up have ``item`` bytes."""

    def __init__(self, results: Results, problem: Problem, item: int, names: Iterable[str]) -> None:
        self._summary = results.summary
        self._paths = {name: results.statistic(name) for name in names}
        self._facts = {}
        for name in self._paths:
            dtype = np.dtype(statistic_dtype(name, problem.product_dtype))
            cut = problem.statistic_pieces(name, item)
            self._facts[name] = problem.statistic_shape(name), dtype, cut
        self._writers: dict[str, StackWriter] = {}
        self.temporary: dict[str, Path] = {}

    def create(self) -> dict[str, Path]:
        """Create the files at their full size, on one rank; return their paths for the others."""
        for name, path in self._paths.items():
            remove_leftovers(path.parent, path.name)
            temporary = temporary_for(path)
            with writing(path), open(temporary, "w+b", opener=create) as file:
                self.temporary[name] = temporary
                StackWriter(file, *self._facts[name]).begin()
        return self.temporary

    def open(self, files: Mapping[str, Path]) -> None:
        """Open the files that one rank has created."""
        self.temporary |= files
        for name, path in files.items():
            file: Any = open(path, "r+b", buffering=0)  # noqa: SIM115
            self._writers[name] = StackWriter(file, *self._facts[name])

    def read(self, name: str) -> np.ndarray:
        """The flat elements of a file that all ranks have closed, mapped."""
        numbers: np.ndarray = np.load(self.temporary[name], "r")
        return numbers.reshape(-1)

    def write(self, found: Mapping[str, np.ndarray], low: int) -> None:
        """Write one stripe of some results, from element ``low`` on.

        If several ranks write, each writes only whole pieces of the checksum.
        """
        for name in found.keys() & self._paths.keys():
            writer, dtype = self._writers[name], self._facts[name][1]
            for number, elements in enumerate(np.atleast_2d(found[name])):  # or one per label
                raw = raw_bytes(np.ascontiguousarray(elements, dtype))
                with writing(self._paths[name]):
                    writer.write_at(number * writer.row_bytes + low * dtype.itemsize, raw)

    def close(self) -> None:
        """Flush and close the files, so that ranks on other nodes see what was written."""
        for name, writer in self._writers.items():
            if not writer.file.closed:
                with writing(self._paths[name]), writer.file as file:
                    os.fsync(file.fileno())

    def discard(self) -> None:
        """Close the files, and remove those that have not got their names."""
        for writer in self._writers.values():
            writer.file.close()
        for path in self.temporary.values():
            with suppress(OSError):
                path.unlink()

    @property
    def digests(self) -> np.ndarray:
        """Checksums of this rank's parts of the files, to be XORed: uint8 ``(statistics, 16)``."""
        return np.array([self._writers[name].hashed.digest for name in self._paths])

    def refuse_incomplete(self) -> None:
        """Refuse files of which this rank, the only one, has not written each piece once."""
        for writer in self._writers.values():
            writer.hashed.hexdigest()

    def publish(self, digests: np.ndarray) -> dict[str, ArrayFile]:
        """Give the files their names; returns their entries in ``summary.json``, with all digests.

        The former summary vouches for the former files, so it is removed first.
        """
        facts = {}
        for row, (name, path) in zip(digests, self._paths.items(), strict=True):
            with writing(path), open(self.temporary[name], "rb") as file:
                publish(file, self.temporary[name], path, self._summary)
            facts[name] = receipts.describe_file(path, self._writers[name], row.tobytes().hex())
        return facts
