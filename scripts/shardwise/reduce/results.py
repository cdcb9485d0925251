"""The files that a reduce writes, by all its ranks: unfinished until all is there."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np

from shardwise.errors import writing
from shardwise.files import pieces
from shardwise.files.checksum import piece_digest
from shardwise.files.commit import create_private, publish
from shardwise.files.npy import DATA_OFFSET, StackWriter
from shardwise.files.partial import refuse_foreign
from shardwise.files.paths import Results
from shardwise.plan.problem import Problem, statistic_dtype
from shardwise.records import receipts
from shardwise.reduce.checkpoint import Checkpoint, CheckpointFolder
from shardwise.reduce.layout import share
from shardwise.reduce.peers import Peers


class ResultFiles:
    """One file per statistic, in the folder of unfinished work."""

    def __init__(self, partial: CheckpointFolder, problem: Problem, names: Sequence[str]) -> None:
        self._partial, self._shape = partial, problem.product_shape
        self._dtypes = {
            name: np.dtype(statistic_dtype(name, problem.product_dtype)) for name in names
        }
        self._open: dict[str, BinaryIO] = {}
        self._pool = ThreadPoolExecutor(1, "flush")
        self._flushing: Future[None] | None = None

    def prepare(self) -> list[Checkpoint]:
        """Make the files, or take those that an earlier reduce has left, with its checkpoints."""
        refuse_foreign(self._partial.folder)
        records = self._partial.records()
        if records and all(self._fits(name) for name in self._dtypes):
            return records
        self._partial.clear()
        self._partial.folder.mkdir(parents=True, exist_ok=True)
        for name, dtype in self._dtypes.items():
            path = self._partial.file(name)
            with writing(path), open(path, "w+b", opener=create_private) as file:
                StackWriter(file, self._shape, dtype)
        return []

    def _fits(self, name: str) -> bool:
        path = self._partial.file(name)
        try:
            array = np.load(path, "r", allow_pickle=False)
        except (OSError, ValueError):
            return False
        return (array.shape, array.dtype) == (self._shape, self._dtypes[name])

    def write(self, results: dict[str, np.ndarray], low: int) -> None:
        """Write one stripe of each result, from element ``low`` on; flush those before behind it.

        Else the whole result would be waited for in the end.
        """
        if self._open and (self._flushing is None or self._flushing.done()):
            self._settle()
            self._flushing = self._pool.submit(self._flush)
        for name, dtype in self._dtypes.items():
            if name not in self._open:
                self._open[name] = open(self._partial.file(name), "r+b", buffering=0)  # noqa: SIM115
            raw = memoryview(np.ascontiguousarray(results[name], dtype)).cast("B")
            at = DATA_OFFSET + low * dtype.itemsize
            with writing(self._partial.file(name)):
                while raw:
                    done = os.pwrite(self._open[name].fileno(), raw, at)
                    raw, at = raw[done:], at + done

    def _settle(self) -> None:
        """Wait for the flush behind the work; its failure counts, as the system tells it once."""
        if self._flushing is not None:
            self._flushing.result()

    def _flush(self) -> None:
        for name, file in self._open.items():
            with writing(self._partial.file(name)):
                os.fsync(file.fileno())

    def sync(self) -> None:
        """See to it that what this rank has written outlives a crash."""
        self._settle()
        self._flush()

    def close(self) -> None:
        """The same, and close the files, so that ranks on other nodes see what was written."""
        try:
            self.sync()
        finally:
            self._pool.shutdown()
            while self._open:
                self._open.popitem()[1].close()

    def checksums(self, peers: Peers) -> dict[str, str]:
        """The checksum of each file, read by all ranks together."""
        found = np.zeros((len(self._dtypes), 16), np.uint8)
        peers.agree(lambda: self._add_digests(found, peers), "the checksum of the results")
        found = peers.xor(found)
        return dict(zip(self._dtypes, (row.tobytes().hex() for row in found), strict=True))

    def _add_digests(self, found: np.ndarray, peers: Peers) -> None:
        for row, (name, dtype) in zip(found, self._dtypes.items(), strict=True):
            total = self._shape[0] * self._shape[1] * dtype.itemsize
            _, piece = pieces.checksum_pieces(total)
            digest = 0
            with open(self._partial.file(name), "rb") as file:
                for number in range(*share(-(-total // piece), peers.rank, peers.size)):
                    file.seek(DATA_OFFSET + number * piece)
                    digest ^= piece_digest(file.read(min(piece, total - number * piece)), number)
            row[:] = np.frombuffer(digest.to_bytes(16, "big"), np.uint8)

    def publish(self, results: Results, checksums: dict[str, str]) -> dict[str, Any]:
        """Give the files their names; what ``summary.json`` says of each."""
        facts = {}
        for name, dtype in self._dtypes.items():
            path, temporary = results.statistic(name), self._partial.file(name)
            with writing(path), open(temporary, "rb") as file:
                publish(file, temporary, path)
            size = self._shape[0] * self._shape[1] * dtype.itemsize
            facts[name] = receipts.describe_file(
                path, self._shape, dtype.name, checksums[name], *pieces.checksum_pieces(size)
            )
        return facts
