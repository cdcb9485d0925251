"""What lies under a name that the user has given. Standard library only."""

import errno
import os
import stat
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from shardwise.errors import InputError


def mode_of(path: Path) -> int | None:
    """The mode of a file or folder, links followed; None where there is none.

    Raises
    ------
    OSError
        Where nobody can tell, as with a link that leads to itself, or a folder that is closed.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a zero byte
        return None


def absent(path: Path) -> str:
    """That there is no such file, and where it was looked for."""
    told = f"{shown(path)} does not exist"
    if path.is_absolute():
        return told
    return f"{told}; looked for {shown(path.absolute())} (relative to the working directory)"


def shown(path: Path | str) -> str:
    """A path for a message: bytes that are not UTF-8 in hexadecimal digits."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def refuse_undecodable(path: Path) -> None:
    """Refuse a name that is not UTF-8: neither Snakemake nor numba can handle one.

    Raises
    ------
    InputError
        Naming it.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{shown(path)}: this path is not UTF-8 text; rename it") from None


def matches(pattern: str) -> list[Path]:
    """The files and folders that a pattern matches, in the order of their names.

    ``*``, ``?`` and ``[…]`` stand for letters within a name, and ``**`` for any folders below,
    which leaves out links to folders: so the search ends, whatever the links lead to. Names that
    begin with a dot have to be asked for.

    Raises
    ------
    OSError
        Where a folder that may hold a match cannot be read.
    """
    found = [Path()]
    for part in Path(pattern).parts:
        if part == "**":
            found = [below for folder in found for below in _folders(folder)]
        elif has_magic(part):
            found = [
                folder / name
                for folder in found
                for name in _names(folder)
                if fnmatchcase(name, part) and (part[0] == "." or name[0] != ".")
            ]
        else:
            found = [path for path in (folder / part for folder in found) if _is_there(path)]
    return sorted(set(found))


def _folders(top: Path) -> list[Path]:
    """A folder and all below it, not by way of links; nothing where there is no folder."""
    found = [top] if _is_folder(top) else []
    for folder in found:  # which grows meanwhile
        with os.scandir(folder) as entries:
            found += [
                folder / entry.name
                for entry in entries
                if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)
            ]
    return found


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if _is_folder(folder) else []


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode_or_loop(path) or 0)


def _is_there(path: Path) -> bool:
    return path.is_symlink() or _mode_or_loop(path) is not None


def _mode_or_loop(path: Path) -> int | None:
    """As :func:`mode_of`; None for a link that leads to itself, too: it holds no match."""
    try:
        return mode_of(path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None
