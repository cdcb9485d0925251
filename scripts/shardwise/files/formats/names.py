"""Names of arrays inside files, such as ``run.h5:/frames``. Standard library only."""

import re

from shardwise.errors import InputError, some

ZARR = (".zarr",)
ZARR_METADATA = ("zarr.json", ".zarray")  # of version 3 and 2: this file stands for the array

FORMATS = {
    "hdf5": (".h5", ".hdf5", ".he5", ".nxs", ".cxi", ".nc", ".mat", ".hdf", ".nwb"),
    "safetensors": (".safetensors",),
    "zarr_store": ZARR_METADATA,
}
"""Suffixes by the module of a format; HDF5 has others in some fields, such as MATLAB 7.3."""

_SUFFIXES = "|".join(end[1:] for end in (*FORMATS["hdf5"], *FORMATS["safetensors"], *ZARR))
_NAME = re.compile(rf"(.+?\.(?:{_SUFFIXES}))/*(?::(.*))?", re.IGNORECASE | re.DOTALL)


def split(name: str) -> tuple[str, str]:
    """The file of an array, and the array's name inside it, which may be empty."""
    match = None if name.endswith(".npy") else _NAME.fullmatch(name)
    return (match[1], match[2] or "") if match else (name, "")


def file_of(name: str) -> str:
    """The file that holds an array; for an array of a Zarr store, its metadata file."""
    return split(name)[0]


def choose_one(file: object, inside: str, names: list[str]) -> InputError:
    """The error that a file has no such array; it names those that the file has."""
    which = f"holds no array {inside!r:.99}" if inside else "may hold several arrays"
    known = some((f"{file}:{name:.99}" for name in names), 5) or "its arrays (it has none)"
    return InputError(f"{file}: {which}; name one of {known}")


def needs(where: object, error: ModuleNotFoundError) -> InputError:
    """The error that the library of a format is not installed."""
    return InputError(f"{where} needs a package: pip install {error.name} on every node")
