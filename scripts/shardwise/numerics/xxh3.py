"""Checksums of device memory: the XXH3 of its pieces, computed on the device.

The digests are those of `files.checksum`, so they compare with those of bytes that a CPU reads. A
warp hashes one piece, and a block has as many warps as it can, so the kernel, on a separate stream,
occupies few multiprocessors for long. Spread over many, it would leave each less room for the
blocks of a product: two warps per block cost float32 products 6 to 10 % on an H100.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.files.checksum import PieceChecksum

_SHORT = 240  # bytes; up to this length XXH3 has another algorithm, which only the host runs
_WARPS = 32  # of a block

Fragment = tuple[PieceChecksum, int, Any]
"""Bytes of cut or short pieces, which the host has to hash: the checksum that they belong to, the
offset at which they begin, and the bytes."""


class DeviceChecksum:
    """Adds bytes on a device to a checksum; queues its work on the current stream."""

    def __init__(self, xp: Any, checksum: PieceChecksum) -> None:
        self._kernel, self.checksum = _kernel(xp), checksum
        self._digest: Any = xp.zeros(2, np.uint64)

    def update(self, offset: int, raw: Any) -> list[Fragment]:
        """Hash bytes ``(n,)`` from byte ``offset`` of the elements on; returns what is left out."""
        checksum, end = self.checksum, offset + len(raw)
        first, behind = checksum.whole_pieces(offset, end)
        while behind > first and (bounds := checksum.bounds(behind - 1))[1] - bounds[0] <= _SHORT:
            behind -= 1
        if behind <= first:
            return [(checksum, offset, raw)]
        cut = (checksum.total_bytes, checksum.row_bytes, checksum.piece_bytes)
        count = behind - first
        words = (np.uint64(word) for word in (offset, *cut, first, count))
        self._kernel((-(-count // _WARPS),), (32, _WARPS), (raw, *words, self._digest))
        checksum.put(first, count, 0)
        low, high = checksum.bounds(first)[0], checksum.bounds(behind - 1)[1]
        parts = (offset, raw[: low - offset]), (high, raw[high - offset :])
        return [(checksum, at, part) for at, part in parts if len(part)]

    def finish(self) -> None:
        """Add the digests of all hashed pieces to the checksum; waits for the device."""
        low, high = self._digest.get().tolist()
        self.checksum.put(0, 0, high << 64 | low)


@cache
def _kernel(xp: Any) -> Any:
    source = Path(__file__).with_name("xxh3.cu").read_text("utf-8")
    return xp.RawKernel(source, "xxh3_pieces", ("-std=c++17",))
