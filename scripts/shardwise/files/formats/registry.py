"""The formats of input, chosen by the name of a file: the rows are in `lookup`.

The module of a format has two functions. ``header(path, inside)`` returns the `Header` of an array:
where its elements lie, or in which chunks. ``read(path, inside, matrices, rows)`` returns rows of
some matrices; it is called for arrays whose header has a ``chunk``.
"""

import importlib
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.files import lookup, npy, remote
from shardwise.files.extents import Status
from shardwise.files.npy import Header


def _format_of(file: str) -> Any:
    """The module of a file's format, loaded with its library; None if no module reads it."""
    for module, suffixes in lookup.FORMATS.items():
        if file.lower().endswith(suffixes):
            return importlib.import_module(f"{__package__}.{module}")
    return None


def locate(text: str) -> str | None:
    """The name of an array in a file of another format than ``.npy``; None if it is none."""
    if text.endswith(".npy"):
        return None
    file, inside = lookup.split(text)
    found = stat.S_IFDIR if remote.is_url(text) else lookup.mode_of(Path(file))
    if found is None and ":" in text:  # a name without a suffix that is known
        file, _, inside = text.rpartition(":")
        found = lookup.mode_of(Path(file))
    if found is None:
        return None
    if not stat.S_ISDIR(found):
        named = f"{file}:{inside}" if inside else file
        return named if _format_of(file) else None
    if not remote.is_url(text):
        file = str(Path(file))
        nodes = (Path(file, name).is_file() for name in (*lookup.ZARR_METADATA, ".zgroup"))
        if not (inside or file.lower().endswith(lookup.ZARR) or any(nodes)):
            return None
    return str(_format_of(f"{file}/{lookup.ZARR_METADATA[0]}").metadata_of(file, inside))


def status_of(file: str) -> Status:
    """The status of the file or object that holds an array; OSError if it is gone."""
    if file.endswith(lookup.ZARR_METADATA):
        found: Status = _format_of(file).status(file)
        return found
    return remote.status(file) if remote.is_url(file) else os.stat(file)


def read_header_and_status(name: str) -> tuple[Header, Status]:
    """The header of an array of any format, with its file's status; OSError if it is gone."""
    file, inside = lookup.split(name)
    kind, status = _format_of(file), status_of(file)  # before the first byte is read
    if isinstance(status, os.stat_result):
        lookup.refuse_special(status, file)
    if kind is not None:
        return kind.header(file, inside), status
    if isinstance(status, os.stat_result):
        return npy.read_header(Path(file)), status
    raw = remote.Object(file, status).take(0, npy.MOST_HEADER_BYTES)
    header = npy.parse_header(raw, status.size, file)
    if header.fortran:
        raise InputError(f"{file}: is in Fortran order; write it anew: numpy.ascontiguousarray")
    return header, status


def read_matrices(name: str, matrices: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
    """Rows of some matrices of an array whose header has a ``chunk``."""
    file, inside = lookup.split(name)
    block: np.ndarray = _format_of(file).read(file, inside, matrices, rows)
    return block
