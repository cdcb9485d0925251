"""The formats of input, chosen by the name of a file: the rows are in `names`."""

import importlib
import os
import stat
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from shardwise.errors import InputError
from shardwise.files import npy, remote
from shardwise.files.extents import Status
from shardwise.files.formats import names, zarr_files
from shardwise.files.lookup import mode_of, refuse_special
from shardwise.files.npy import Header

Span = tuple[int, int]


class InputFormat(Protocol):
    """The functions that the module of a format has."""

    def header(self, path: str, inside: str) -> Header:
        """Where the elements of an array lie, or in which chunks; InputError if unreadable."""

    def read(self, path: str, inside: str, matrices: Span, rows: Span) -> np.ndarray:
        """Rows of some matrices; only for arrays whose header has a ``chunk``."""


def _format_of(file: str) -> InputFormat | None:
    """The module of a file's format, loaded with its library; None if no module reads it."""
    for module, suffixes in names.FORMATS.items():
        if file.lower().endswith(suffixes):
            try:
                return cast(InputFormat, importlib.import_module(f"{__package__}.{module}"))
            except ModuleNotFoundError as error:
                raise names.needs(file, error) from error
    return None


def locate(text: str) -> str | None:
    """The name of an array in a file of another format than ``.npy``; None if it is none."""
    if text.endswith(".npy"):
        return None
    if remote.is_url(text):
        return zarr_files.metadata_of(*names.split(text))
    file, inside = names.split(text)
    mode = mode_of(Path(file))
    if mode is None and ":" in text:  # a name without a suffix that is known
        file, _, inside = text.rpartition(":")
        mode = mode_of(Path(file))
    if mode is None:
        return None
    if stat.S_ISDIR(mode):
        nodes = (Path(file, name).is_file() for name in (*names.ZARR_METADATA, ".zgroup"))
        wanted = inside or file.lower().endswith(names.ZARR) or any(nodes)
        return zarr_files.metadata_of(str(Path(file)), inside) if wanted else None
    named = f"{file}:{inside}" if inside else file
    return named if _format_of(file) else None


def status_of(file: str) -> Status:
    """The status of the file or object that holds an array; OSError if it is gone."""
    if not remote.is_url(file):
        return os.stat(file)
    zarr = file.endswith(names.ZARR_METADATA)
    return zarr_files.status_of_objects(file) if zarr else remote.status(file)


def read_header_and_status(name: str) -> tuple[Header, Status]:
    """The header of an array of any format, with its file's status; OSError if it is gone."""
    file, inside = names.split(name)
    kind, status = _format_of(file), status_of(file)  # before the first byte is read
    if isinstance(status, os.stat_result):
        refuse_special(status, file)
    if kind is not None:
        return kind.header(file, inside), status
    if not isinstance(status, remote.Status):
        return npy.read_header(Path(file)), status
    raw = remote.Object(file, status).take(0, npy.MOST_HEADER_BYTES)
    header = npy.parse_header(raw, status.size, file)
    if header.fortran:
        raise InputError(f"{file}: is in Fortran order; write it anew: numpy.ascontiguousarray")
    return header, status


def read_matrices(name: str, matrices: Span, rows: Span) -> np.ndarray:
    """Rows of some matrices of an array whose header has a ``chunk``."""
    file, inside = names.split(name)
    kind = _format_of(file)
    assert kind is not None  # a .npy file has no chunks
    return kind.read(file, inside, matrices, rows)
