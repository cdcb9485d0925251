"""How many bytes a compressed chunk decodes to, counted before anything holds them.

A library decodes a chunk as a whole: kilobytes may become gigabytes, and where too few come, the
one of HDF5 reads what lies in memory behind them. Standard library only.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from shardwise.units import MIB

_ZSTD_BLOCK = 128 * 1024  # the most that a block decodes to
_LZF_RUN, _LZF_LONG = 32, 7  # from here on a byte begins a copy; its length has another byte


def plain_names(names: Iterable[str]) -> list[str]:
    """Names of Zarr's codecs as `COUNTED` has them, in the order of chunks; no checksums."""
    return [name.removeprefix("numcodecs.") for name in names if name != "crc32c"]


def _streamed(make: Callable[[], Any], raw: bytes, most: int) -> int:
    """By decoding a MiB at a time; the libraries go on where a stream follows another."""
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
        elif not part and not raw:  # it is cut off
            break
    return nbytes


def _lzf(raw: bytes, most: int) -> int:
    """By adding up the lengths of runs and copies, which are all that it consists of."""
    at = nbytes = 0
    while at < len(raw) and nbytes <= most:
        length = raw[at]
        if length < _LZF_RUN:
            nbytes, at = nbytes + length + 1, at + length + 2
            continue
        length >>= 5
        if length == _LZF_LONG:
            at += 1
            length += raw[at]
        nbytes, at = nbytes + length + 2, at + 2
    return nbytes


def _zstd(raw: bytes, most: int) -> int:
    """By what the first frame says of itself; else by its blocks, as if each were full."""
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
        nbytes += _ZSTD_BLOCK if kind == 2 else size
    return nbytes


def _number(begin: int, raw: bytes, most: int) -> int:
    """By a number of 32 bits in the header, which its decoder insists on."""
    return int.from_bytes(raw[begin : begin + 4], "little")


COUNTED: dict[str, Callable[[bytes, int], int]] = {
    "blosc": partial(_number, 4),
    "bz2": partial(_streamed, bz2.BZ2Decompressor),
    "hdf5 lz4": lambda raw, most: int.from_bytes(raw[:8]),
    "gzip": partial(_streamed, partial(zlib.decompressobj, 31)),
    "lz4": partial(_number, 0),
    "lzf": _lzf,
    "lzma": partial(_streamed, lzma.LZMADecompressor),
    "zlib": partial(_streamed, zlib.decompressobj),
    "zstd": _zstd,
}
"""What counts the bytes that a chunk decodes to, up to somewhat more than a number; by the kinds of
streams, as Zarr calls them. Damaged ones make it fail as the module of their kind does."""
