"""Checksums of the elements of arrays, as they are written and read."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardwise.errors import IntegrityError
from shardwise.files.extents import OpenFile
from shardwise.files.pieces import PART_BYTES


def raw_bytes(block: Any) -> Any:
    """The bytes of a C-contiguous array of NumPy or CuPy: uint8 ``(nbytes,)``, without a copy."""
    return block.reshape(-1).view("uint8")


def piece_digest(raw: np.ndarray | memoryview | bytearray, number: int) -> int:
    """XXH3 of 128 bits of one piece of a file's elements, with its number as the seed."""
    return xxhash.xxh3_128_intdigest(raw, seed=number)


class PieceChecksum:
    """The checksum of a file's elements, from any runs of bytes, in any order, from any thread.

    The elements are cut into rows of ``row_bytes``, and each row into pieces of ``piece_bytes``;
    the last of each may be shorter (`pieces.checksum_pieces`). The XOR of the digests of all
    pieces is the checksum. Each is seeded with its number, so that equal pieces do not cancel.
    """

    def __init__(self, total_bytes: int, row_bytes: int, piece_bytes: int) -> None:
        if min(row_bytes, piece_bytes) < 1:
            raise IntegrityError("row_bytes and piece_bytes of a receipt must be 1 or more")
        self.total_bytes, self.row_bytes, self.piece_bytes = total_bytes, row_bytes, piece_bytes
        self._in_row = -(-row_bytes // piece_bytes)
        rows, rest = divmod(total_bytes, row_bytes)
        self._seen = bytearray(rows * self._in_row + -(-rest // piece_bytes))
        self._digest, self._twice = 0, False
        # The parts of incomplete pieces, and their offsets in these, by number.
        self._begun: dict[int, list[tuple[int, bytes]]] = {}
        self._lock = threading.Lock()

    def update(self, offset: int, view: np.ndarray | memoryview) -> None:
        """Take consecutive bytes, from byte ``offset`` of the elements on; parts of pieces wait."""
        raw = memoryview(view)
        if offset + len(raw) > self.total_bytes:
            raise IntegrityError("there are more bytes than the header says")
        at = 0
        while at < len(raw):
            number, low, high = self._piece(offset + at)
            part = raw[at : high - offset]
            if len(part) == high - low:
                self.put(number, 1, piece_digest(part, number))
            else:
                self._take_part(number, offset + at - low, high - low, part)
            at += len(part)

    def hexdigest(self) -> str:
        """The checksum, 32 hexadecimal digits; IntegrityError if a piece is missing or doubled."""
        if self._twice or self._begun or 0 in self._seen:
            raise IntegrityError("a piece of the elements is missing, or came twice")
        return f"{self._digest:032x}"

    @property
    def digest(self) -> np.ndarray:
        """XOR of the digests of all pieces so far, uint8 ``(16,)``; ranks combine theirs by XOR."""
        return np.frombuffer(self._digest.to_bytes(16, "big"), np.uint8)

    def whole_pieces(self, low: int, high: int) -> tuple[int, int]:
        """The pieces wholly within bytes ``low`` to ``high``: first, last exclusive; or less."""
        first, begin, _ = self._piece(low)
        behind = len(self._seen) if high == self.total_bytes else self._piece(high)[0]
        return first + (begin < low), behind

    def bounds(self, number: int) -> tuple[int, int]:
        """The bytes of a piece: first, last exclusive."""
        row, index = divmod(number, self._in_row)
        low = row * self.row_bytes + index * self.piece_bytes
        return low, min(low + self.piece_bytes, (row + 1) * self.row_bytes, self.total_bytes)

    def _piece(self, byte: int) -> tuple[int, int, int]:
        """The number of the piece that holds a byte, and the `bounds` of that piece."""
        row, at = divmod(byte, self.row_bytes)
        number = row * self._in_row + at // self.piece_bytes
        return number, *self.bounds(number)

    def _take_part(self, number: int, at: int, length: int, part: memoryview) -> None:
        with self._lock:
            parts = self._begun.setdefault(number, [])
            parts.append((at, bytes(part)))
            if sum(len(raw) for _, raw in parts) < length:
                return
            del self._begun[number]
        piece = bytearray()
        for begin, raw in sorted(parts):
            self._twice |= begin != len(piece)
            piece += raw
        self.put(number, 1, piece_digest(piece, number))

    def put(self, first: int, count: int, digest: int) -> None:
        """Take the XOR of the digests of consecutive pieces that were hashed elsewhere."""
        part = slice(first, first + count)
        with self._lock:
            self._twice |= 1 in self._seen[part]
            self._seen[part] = b"\1" * count
            self._digest ^= digest


def file_checksum(path: Path, offset: int, row_bytes: int, piece_bytes: int) -> str:
    """Checksum of the elements of a file, from byte ``offset`` on."""
    with OpenFile(str(path)) as file:
        total = max(0, os.fstat(file.fileno()).st_size - offset)
        checksum = PieceChecksum(total, row_bytes, piece_bytes)
        buffer = np.empty(min(PART_BYTES, max(1, total)), np.uint8)
        for done in range(0, total, len(buffer)):
            part = buffer[: total - done]
            file.read_at(offset + done, part)
            checksum.update(done, part)
    return checksum.hexdigest()
