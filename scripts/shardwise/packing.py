"""Arrays as one run of bytes, to send and to keep."""

import json
from collections.abc import Iterable

import numpy as np

from shardwise.errors import IntegrityError

_HEAD = 8  # bytes of the length of what describes the arrays
_ALIGNED = 16


def pack(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Arrays of numbers, of any shapes, as bytes ``(n,)`` of uint8."""
    arrays = [np.asarray(array, order="C") for array in arrays]
    head = json.dumps([[array.dtype.str, list(array.shape)] for array in arrays]).encode()
    head += b" " * (-(_HEAD + len(head)) % _ALIGNED)
    parts = [np.frombuffer(len(head).to_bytes(_HEAD, "little") + head, np.uint8)]
    for array in arrays:
        parts.append(array.reshape(-1).view(np.uint8))
        parts.append(np.zeros(-array.nbytes % _ALIGNED, np.uint8))
    return np.concatenate(parts)


def unpack(raw: np.ndarray) -> list[np.ndarray]:
    """The arrays that :func:`pack` was given, as views of the bytes.

    Raises
    ------
    IntegrityError
        Where the bytes are no packed arrays.
    """
    try:
        at = _HEAD + int.from_bytes(raw[:_HEAD].tobytes(), "little")
        arrays = []
        for descr, shape in json.loads(raw[_HEAD:at].tobytes()):
            dtype = np.dtype(descr)
            size = int(np.prod(shape, dtype=object)) * dtype.itemsize
            arrays.append(raw[at : at + size].view(dtype).reshape(shape))
            at += size + -size % _ALIGNED
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"packed arrays are damaged ({error})") from error
    return arrays
