"""The formats of input beside ``.npy``, chosen by the name of a file."""

import importlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shardwise.errors import InputError
from shardwise.files import lookup, npy, remote
from shardwise.files.lookup import Status
from shardwise.files.npy import Header

Span = tuple[int, int]


class Format(Protocol):
    """A module of this package that reads a format, by its row in `lookup.FORMATS`."""

    def header(self, path: str, inside: str, /) -> Header:
        """Where the elements of an array lie, or in which chunks; InputError if unreadable."""

    def read(self, path: str, inside: str, matrices: Span, rows: Span, /) -> np.ndarray:
        """Rows ``(n, r, k)`` of some matrices of an array whose header has a ``chunk``."""


if TYPE_CHECKING:  # mypy compares them; each is loaded when needed, as it imports a library
    from shardwise.files.formats import hdf5, safetensors, zarr_store

    ALL: tuple[Format, ...] = hdf5, safetensors, zarr_store


def _format_of(file: str) -> Format | None:
    """The module of a file's format; None if no module reads it."""
    for module, suffixes in lookup.FORMATS.items():
        if file.lower().endswith(suffixes):
            found: Format = importlib.import_module(f"{__package__}.{module}")
            return found
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
    if not stat.S_ISDIR(found or 0):
        named = f"{file}:{inside}" if inside else file
        return named if found and _format_of(file) else None
    if not remote.is_url(text):
        file = str(Path(file))
        nodes = (Path(file, name).is_file() for name in (*lookup.ZARR_METADATA, ".zgroup"))
        if not (inside or file.lower().endswith(lookup.ZARR) or any(nodes)):
            return None
    from shardwise.files.formats import zarr_store

    return zarr_store.metadata_of(file, inside)


def status_of(file: str) -> Status:
    """The status of the file or object that holds an array; OSError if it is gone."""
    if file.endswith(lookup.ZARR_METADATA):
        from shardwise.files.formats import zarr_store

        return zarr_store.status(file)
    if remote.is_url(file):
        return remote.status(file)
    found = os.stat(file)
    lookup.refuse_special(found, file)
    return Status.of(found)


def read_header_and_status(name: str) -> tuple[Header, Status]:
    """The header of an array of any format, with its file's status; OSError if it is gone."""
    file, inside = lookup.split(name)
    own, status = _format_of(file), status_of(file)  # before the first byte is read
    if own:
        return own.header(file, inside), status
    if not remote.is_url(file):
        return npy.read_header(Path(file)), status
    raw = remote.Object(file, status).take(0, npy.MOST_HEADER_BYTES)
    header = npy.parse_header(raw, status.size, file)
    if header.fortran:
        raise InputError(f"{file}: is in Fortran order; write it anew: numpy.ascontiguousarray")
    return header, status


def read_matrices(name: str, matrices: Span, rows: Span) -> np.ndarray:
    """Rows of some matrices of an array whose header has a ``chunk``."""
    file, inside = lookup.split(name)
    own = _format_of(file)
    assert own, name
    return own.read(file, inside, matrices, rows)
