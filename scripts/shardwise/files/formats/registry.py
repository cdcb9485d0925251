"""The formats of input, chosen by name: a new one is one module and one entry of ``_FORMATS``."""

import os
from pathlib import Path
from types import ModuleType

import numpy as np

from shardwise.errors import InputError
from shardwise.files import npy
from shardwise.files.formats import hdf5, names, npz, safetensors, zarr_store
from shardwise.files.lookup import absent, mode_of
from shardwise.files.npy import Header
from shardwise.files.small import refuse_special

Span = tuple[int, int]


# Each has `header`, which says where the elements of an array are, or in which chunks, and raises
# InputError if it cannot be read for whatever reason; and `read`, if its arrays may have chunks.
_FORMATS: dict[tuple[str, ...], ModuleType] = {
    names.HDF5: hdf5,
    names.NPZ: npz,
    names.SAFETENSORS: safetensors,
    names.ZARR_METADATA: zarr_store,
}


def _format_of(file: str) -> ModuleType | None:
    return next((f for suffixes, f in _FORMATS.items() if file.lower().endswith(suffixes)), None)


def locate(text: str) -> str | None:
    """The name of an array that is no ``.npy`` file; None if the text names anything else.

    Raises InputError if its file does not exist, or a store of Zarr holds no such array.
    """
    file, inside = names.split(text)
    if file.lower().endswith(names.ZARR):
        return str(zarr_store.metadata_of(Path(file), inside))
    if _format_of(file) is None:
        return None
    if mode_of(Path(file)) is None:
        raise InputError(f"input: {absent(Path(file))}")
    return text


def read_header_and_status(name: str) -> tuple[Header, os.stat_result]:
    """The header of an array of any format, with its file's status; OSError if it is gone."""
    file, inside = names.split(name)
    kind = _format_of(file)
    if kind is None:
        return npy.read_header_and_status(Path(name))
    refuse_special(Path(file))
    status = os.stat(file)  # before the first byte is read
    header: Header = kind.header(Path(file), inside)
    return header, status


def read_matrices(name: str, matrices: Span, rows: Span) -> np.ndarray:
    """Rows of some matrices of an array whose header has a ``chunk``."""
    file, inside = names.split(name)
    kind = _format_of(file)
    assert kind is not None  # a .npy file has no chunks
    block: np.ndarray = kind.read(Path(file), inside, matrices, rows)
    return block
