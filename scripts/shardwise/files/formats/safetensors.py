"""Tensors of safetensors files: a header in JSON, then the bytes; no package is needed."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.files.formats import names
from shardwise.files.npy import ALLOWED, Header

_MOST_HEADER_BYTES = 100_000_000  # as the format has it
_DTYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "I8": "|i1", "I16": "<i2",
    "I32": "<i4", "I64": "<i8", "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


def header(path: Path, inside: str) -> Header:
    """Shape, type and place of a tensor; InputError if it cannot be read."""
    size, where = path.stat().st_size, f"{path}:{inside}"
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MOST_HEADER_BYTES, size - 8):
            raise InputError(f"{path} is not a safetensors file, or is truncated")
        raw = file.read(length)
    try:
        tensors = json.loads(raw)
        listed = [name for name in tensors if name != "__metadata__"]
        if inside not in listed:
            raise names.choose_one(path, inside, listed)
        shape, kind, (begin, end) = _fields(tensors[inside])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: damaged header; write the file again") from error
    if kind not in _DTYPES:
        raise InputError(f"{where}: holds elements of type {kind!r:.60}; allowed are {ALLOWED}")
    nbytes = math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize
    if not 0 <= begin <= end <= size - 8 - length or end - begin != nbytes:
        raise InputError(
            f"{where}: its header says {nbytes} bytes from {begin} to {end} of "
            f"{size - 8 - length}; copy or write the file again"
        )
    return Header(shape, _DTYPES[kind], fortran=False, offset=8 + length + begin)


def _fields(entry: dict[str, Any]) -> tuple[tuple[int, ...], str, tuple[int, int]]:
    """Shape, type, and first and last byte of a tensor; ValueError where they are none."""
    shape, offsets = tuple(entry["shape"]), tuple(entry["data_offsets"])
    if any(type(n) is not int or not 0 <= n < 2**63 for n in shape + offsets) or len(offsets) != 2:
        raise ValueError
    return shape, str(entry["dtype"]), offsets
