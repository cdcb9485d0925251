"""Files, folders and arrays that the user has named. Standard library only."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import NamedTuple

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


class Status(NamedTuple):
    """A file or object at one moment: no two have the same ``place``."""

    place: str  # its address; of a file device and inode, as it may have several names
    size: int
    version: str  # changes with its bytes: the ETag; of a file when it was modified and changed, ns

    @property
    def identity(self) -> str:
        """What the plan says of it; without its place, as nodes may number a file differently."""
        return f"{self.size}:{self.version}"

    @classmethod
    def of(cls, s: os.stat_result) -> "Status":
        """That of a file."""
        return cls(f"{s.st_dev}:{s.st_ino}", s.st_size, f"{s.st_mtime_ns}:{s.st_ctime_ns}")


def mode_of(path: Path) -> int | None:
    """The mode of a file or folder, links followed; None if there is none, OSError if unknown."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a zero byte
        return None


def absent(path: Path) -> str:
    """The words of a message that a path does not exist, and where it was looked for."""
    return f"{path} does not exist" + f"; looked for {path.absolute()}" * (not path.is_absolute())


def refuse_special(status: os.stat_result, named: str) -> None:
    """Refuse anything but a regular file before it is opened: opening a pipe may block forever."""
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{named} is not a file, but a folder, pipe or device")


@contextmanager
def reading(path: Path, key: str) -> Iterator[None]:
    """Refuse a file that a config names under ``key`` if it is no regular file, or unreadable."""
    try:
        refuse_special(os.stat(path), f"{key}{path}")
        yield
    except FileNotFoundError as error:
        raise InputError(f"{key}{absent(path)}") from error
    except OSError as error:
        raise InputError(f"{key}{path} cannot be read: {error.strerror}") from error


def refuse_undecodable(path: Path | str) -> None:
    """Refuse a name that is not UTF-8: neither Snakemake nor numba can handle one."""
    if re.search("[\ud800-\udfff]", str(path)):  # what Python makes of other bytes
        raise InputError(f"{path}: this path is not UTF-8 text; rename it")


def matches(pattern: str) -> list[Path]:
    """The files and folders that a pattern matches, in natural order; no hidden ones by ``*``.

    ``**`` matches any folders below and follows no links to folders, so the search always ends
    (`glob.glob` follows them). OSError for an unreadable folder, which `Path.glob` would skip.
    """
    paths = [Path()]
    for part in Path(pattern).parts:
        tops = [path for path in paths if stat.S_ISDIR(mode_of(path) or 0)]
        if part == "**":
            paths = [below for top in tops for below in _folders(top)]
        elif has_magic(part):
            found = ((folder, name) for folder in tops for name in os.listdir(folder))
            shown = ((f, name) for f, name in found if part[0] == "." or name[0] != ".")
            paths = [folder / name for folder, name in shown if fnmatchcase(name, part)]
        else:
            named = [folder / part for folder in paths]
            paths = [path for path in named if path.is_symlink() or mode_of(path)]
    return in_order(set(paths))


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Paths in natural order: digits in names count as numbers, so ``m9`` comes before ``m10``."""

    def key(path: Path) -> tuple[list[list[str | int]], Path]:
        names = [re.split("([0-9]+)", name) for name in path.parts]
        return [[int(x) if i % 2 else x for i, x in enumerate(name)] for name in names], path

    return sorted(paths, key=key)


def _folders(top: Path) -> Iterator[Path]:
    """A folder and all below it, without hidden ones."""
    for folder, inner, _ in os.walk(top, onerror=refuse_closed):
        inner[:] = [name for name in inner if name[0] != "."]
        yield Path(folder)


def refuse_closed(error: OSError) -> None:
    """Raise the error of an unreadable folder: `os.walk` would skip the folder silently."""
    raise error


def split(name: str) -> tuple[str, str]:
    """The file of an array, and the array's name inside it, which may be empty."""
    match = None if name.endswith(".npy") else _NAME.fullmatch(name)
    return (match[1], match[2] or "") if match else (name, "")


def file_of(name: str) -> str:
    """The file that holds an array; for an array of a Zarr store, its metadata file."""
    return split(name)[0]


def choose_one(file: object, inside: str, names: list[str]) -> InputError:
    """The error that a file has no such array; it names those that the file has."""
    known = some((f"{file}:{name:.99}" for name in names), 5) or "its arrays (it has none)"
    which = f"holds no array {inside!r:.99}" if inside else "may hold several arrays"
    return InputError(f"{file} {which}; name one of {known}")
