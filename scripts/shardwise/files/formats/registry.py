"""The formats of input, chosen by name: a new one is one class and one entry of ``FORMATS``."""

import os
from pathlib import Path

import numpy as np

from shardwise.errors import InputError
from shardwise.files import npy
from shardwise.files.formats import names, zarr_store
from shardwise.files.formats.hdf5 import Hdf5
from shardwise.files.formats.npz import Npz
from shardwise.files.formats.safetensors import Safetensors
from shardwise.files.lookup import absent, mode_of
from shardwise.files.npy import Header
from shardwise.files.small import refuse_special

Span = tuple[int, int]


# Each has its suffixes; `header`, which says where an array's elements lie, or in which chunks, and
# raises InputError where it cannot be read for whatever reason; and `read` for what lies in chunks.
FORMATS = (Hdf5(), Npz(), Safetensors(), zarr_store.Zarr())


def _format_of(file: str) -> Hdf5 | Npz | Safetensors | zarr_store.Zarr | None:
    return next((f for f in FORMATS if file.lower().endswith(f.suffixes)), None)


def locate(text: str) -> str | None:
    """The name of an array that is no ``.npy`` file; None where the text names anything else.

    Raises InputError where its file does not exist, or a store of Zarr holds no such array.
    """
    file, inside = names.split(text)
    if file.lower().endswith(names.ZARR):
        return str(zarr_store.metadata_of(Path(file), inside))
    if Path(file).name in names.ZARR_METADATA:
        return file
    if _format_of(file) is None:
        return None
    if mode_of(Path(file)) is None:
        raise InputError(f"input: {absent(Path(file))}")
    return text


def read_header_and_status(name: str) -> tuple[Header, os.stat_result]:
    """The header of an array of any format, with its file's status; OSError where it is gone."""
    file, inside = names.split(name)
    kind = _format_of(file)
    if kind is None:
        return npy.read_header_and_status(Path(name))
    refuse_special(Path(file))
    status = os.stat(file)  # before the first byte is read
    return kind.header(Path(file), inside), status


def read_matrices(name: str, matrices: Span, rows: Span) -> np.ndarray:
    """Rows of some matrices of an array whose header has a ``chunk``."""
    file, inside = names.split(name)
    kind = _format_of(file)
    assert isinstance(kind, Hdf5 | zarr_store.Zarr)  # the others have no chunks
    return kind.read(Path(file), inside, matrices, rows)
