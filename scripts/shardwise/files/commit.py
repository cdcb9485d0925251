"""Atomic commits: a file appears whole under its name, or not at all."""

import errno
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shardwise.errors import writing

# Errors of file systems that cannot flush a folder: CIFS, exFAT, some FUSE.
_UNABLE = (errno.EINVAL, errno.EBADF, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
_UNDER_WAY: set[Path] = set()  # temporary files of this process
_CREATING = threading.RLock()  # held while a file is created; `abandon` never releases it


@contextmanager
def commit(path: Path, sweep: bool = False, receipt: Path | None = None) -> Iterator[BinaryIO]:
    """Write a file so that it exists whole or not at all, whatever happens.

    A temporary file of a unique name in the same folder is written, flushed to the disk and
    renamed; then the folder is flushed. Two writers of one file leave one whole file. ``sweep``
    first removes what dead writers of this file left; ``receipt`` is that of the former file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if sweep:
        remove_leftovers(path.parent, path.name)
    temporary = temporary_for(path)
    _UNDER_WAY.add(temporary)
    try:
        with writing(path), open(temporary, "w+b", opener=create) as file:
            try:
                yield file
            except BaseException:
                file.raw.close()  # an error while it writes its buffer would hide this one
                raise
            file.flush()
            publish(file, temporary, path, receipt)
    except BaseException:
        with suppress(OSError):  # it would hide the cause
            temporary.unlink()
        raise
    finally:
        _UNDER_WAY.discard(temporary)


def temporary_for(path: Path) -> Path:
    """A temporary name in the folder of a file, which no other writer of that file uses."""
    writer = f"{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"
    return path.with_name(f".{path.name}.{writer}.tmp")


def create(name: str, flags: int) -> int:
    """An opener for `open`: creates a new file, and follows no link."""
    with _CREATING:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def abandon() -> None:
    """Remove the temporary files of all commits: this process will not wait for its threads."""
    _CREATING.acquire()  # nobody would be left to remove what another thread creates from now on
    for temporary in list(_UNDER_WAY):
        with suppress(OSError):
            temporary.unlink()


def publish(file: BinaryIO, temporary: Path, path: Path, receipt: Path | None = None) -> None:
    """Fsync a whole file whose buffers are flushed, rename it to ``path``, and fsync the folder.

    ``receipt``, that of the former file of this name, is removed before the rename.
    """
    os.fsync(file.fileno())
    if receipt is not None:
        os.stat(temporary)  # fails if the folder was renamed: then this receipt is another run's
        receipt.unlink(missing_ok=True)
    _rename(temporary, path, os.fstat(file.fileno()))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        os.close(folder)


def _rename(temporary: Path, path: Path, written: os.stat_result) -> None:
    try:
        os.replace(temporary, path)
    except OSError:
        # On NFS a rename whose answer was lost reports failure although it happened.
        with suppress(OSError):
            if os.path.samestat(os.stat(path), written):
                return
        raise


def remove_leftovers(folder: Path, name: str) -> None:
    """Remove temporary files that dead writers of a file on this host left."""
    host = re.escape(socket.gethostname())
    pattern = re.compile(rf"\.{re.escape(name)}\.{host}\.(\d{{1,9}})\.[0-9a-f]+\.tmp")
    with suppress(FileNotFoundError):
        for entry in os.listdir(folder):
            if (match := pattern.fullmatch(entry)) and not _alive(int(match[1])):
                Path(folder, entry).unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    """Whether a process may still write; a zombie cannot."""
    try:
        os.kill(pid, 0)
        # As bytes: the program's name, in parentheses, may be cut within a character.
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # it is another user's, or /proc hides it
        return True
    return state not in b"ZX"
