"""Tensors of safetensors files: its library checks the file, then the bytes are read in place."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from shardwise.errors import InputError
from shardwise.files.formats import names
from shardwise.files.npy import ALLOWED, Header

_DTYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "I8": "|i1", "I16": "<i2",
    "I32": "<i4", "I64": "<i8", "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


def header(path: Path, inside: str) -> Header:
    """Shape, type and place of a tensor; InputError if it cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            if inside not in file.keys():  # noqa: SIM118 (it is no mapping)
                raise names.choose_one(path, inside, list(file.keys()))
            tensor = file.get_slice(inside)
            shape, kind = tuple(tensor.get_shape()), tensor.get_dtype()
    except SafetensorError as error:
        raise InputError(
            f"{path} cannot be read as safetensors: {error!s:.200}; copy or write it again"
        ) from error
    if kind not in _DTYPES:
        raise InputError(f"{path}:{inside}: holds elements of type {kind}; allowed are {ALLOWED}")
    offset = _offset(path, inside, math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize)
    return Header(shape, _DTYPES[kind], fortran=False, offset=offset, place=offset)


def _offset(path: Path, inside: str, nbytes: int) -> int:
    """Byte at which the elements begin, which the library checks but does not tell."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(length))[inside]["data_offsets"]
    assert end - begin == nbytes
    return 8 + length + int(begin)
