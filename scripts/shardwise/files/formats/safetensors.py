"""Tensors of safetensors files: its library checks the file, then the bytes are read in place.

Tensors of bfloat16, which NumPy lacks, are read as float32, which represents all of its numbers.
"""

import json
import math

import numpy as np
from safetensors import SafetensorError, safe_open

from shardwise.errors import InputError, changed
from shardwise.files.lookup import choose_one
from shardwise.files.npy import ALLOWED, DTYPES, Header

_DTYPES = {f"{d[0].upper()}{8 * int(d[1:])}": np.dtype(d).str for d in DTYPES} | {"BF16": "<f4"}
_BITS = np.dtype("<u2")  # of a bfloat16: the upper half of the bits of a float32


def header(path: str, inside: str) -> Header:
    """Shape, type and place of a tensor; InputError if it cannot be read."""
    try:
        with safe_open(path, framework="numpy"), open(path, "rb") as file:  # the former checks it
            length = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(length))
    except SafetensorError as error:
        words = f"cannot be read as safetensors: {error!s:.200}; copy or write it again"
        raise InputError(f"{path} {words}") from error
    tensors.pop("__metadata__", None)
    if inside not in tensors:
        raise choose_one(path, inside, list(tensors))
    kind, shape = tensors[inside]["dtype"], tuple(tensors[inside]["shape"])
    if kind not in _DTYPES:
        raise InputError(f"{path}:{inside}: holds elements of type {kind}; allowed are {ALLOWED}")
    offset = 8 + length + tensors[inside]["data_offsets"][0]
    row = (*[1] * (len(shape) - 1), *shape[-1:]) if kind == "BF16" else ()
    return Header(shape, _DTYPES[kind], offset=offset, place=offset, chunk=row)


def read(path: str, inside: str, matrices: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
    """Rows of some bfloat16 matrices, as float32; all rows if there are several matrices."""
    own = header(path, inside)
    height, width = own.shape[-2:]
    shape = (matrices[1] - matrices[0], rows[1] - rows[0], width)
    begin = own.offset + (matrices[0] * height + rows[0]) * width * _BITS.itemsize
    bits = np.fromfile(path, _BITS, math.prod(shape), offset=begin)
    if bits.size != math.prod(shape):
        raise changed(path)
    return (bits.astype("<u4") << 16).view("<f4").reshape(shape)
