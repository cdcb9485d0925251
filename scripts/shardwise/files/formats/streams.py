"""How many bytes a compressed chunk decodes to, counted without holding them in memory."""

import bz2
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from shardwise.units import MIB


def _streamed(make: Callable[[], Any], raw: bytes, most: int) -> int:
    """By decoding a MiB at a time; counts several streams in a row, as the libraries do."""
    nbytes, stream = 0, make()
    while nbytes <= most:
        part = stream.decompress(raw, MIB)
        nbytes += len(part)
        raw = getattr(stream, "unconsumed_tail", b"")
        if stream.eof:
            raw = stream.unused_data.lstrip(b"\0")
            stream = make()
            if not raw:
                break
        elif not part and not raw:  # the stream is cut off
            break
    return nbytes


def _lzf(raw: bytes, most: int) -> int:
    """By adding up the lengths of runs and copies: LZF consists of nothing else."""
    at = nbytes = 0
    while at < len(raw) and nbytes <= most:
        length = raw[at]
        if length < 32:  # a run; larger bytes begin a copy
            nbytes, at = nbytes + length + 1, at + length + 2
            continue
        length >>= 5
        if length == 7:  # then another byte follows
            at += 1
            length += raw[at]
        nbytes, at = nbytes + length + 2, at + 2
    return nbytes


def _zstd(raw: bytes, most: int) -> int:
    """By the size in the first frame's header; else by its blocks, compressed ones as if full."""
    flags, single = raw[4], raw[4] >> 5 & 1
    at = 6 - single + (0, 1, 2, 4)[flags & 3]
    wide = (single, 2, 4, 8)[flags >> 6]
    nbytes, at = 0, at + wide
    if wide:
        return int.from_bytes(raw[at - wide : at], "little") + 256 * (wide == 2)
    last = False
    while not last and at < len(raw):
        head = int.from_bytes(raw[at : at + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == 1 else size)
        nbytes += 128 * 1024 if kind == 2 else size  # the most that a block decodes to
    return nbytes


# By kind of stream: counts the bytes that a chunk decodes to, at least until they exceed ``most``.
# On a damaged stream it may raise the decoder's errors.
COUNTED: dict[str, Callable[[bytes, int], int]] = {
    "blosc": lambda raw, most: int.from_bytes(raw[4:8], "little"),
    "bz2": partial(_streamed, bz2.BZ2Decompressor),
    "lz4": lambda raw, most: int.from_bytes(raw[:8]),
    "lzf": _lzf,
    "zlib": partial(_streamed, zlib.decompressobj),
    "zstd": _zstd,
}
