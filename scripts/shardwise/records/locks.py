"""Locks on a results folder: who may work in it at the same time."""

import fcntl
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from shardwise.errors import TryAgain
from shardwise.files.paths import Results


def take_lock(path: Path, busy: str, kind: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> BinaryIO:
    """Take a lock, held until the file is closed; if it is taken, TryAgain says ``busy``.

    A disk without locks keeps nobody out. Two reduces at once there still write the same bits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = FileIO(path, "a+")
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        file.close()
        raise TryAgain(busy) from None
    except OSError:
        pass
    return file


def hold_job_lock(results: Results) -> AbstractContextManager[Any]:
    """Take the lock that all jobs on these results share, held until the context ends."""
    # A disk that is full, read-only or without such locks must not stop a job here.
    with suppress(OSError, TryAgain):
        return take_lock(results.living, "", fcntl.LOCK_SH)
    return nullcontext()


def is_job_locked(path: Path) -> bool | None:
    """Whether a job holds this lock; None if there is none, or none that this user can test."""
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return True if isinstance(error, BlockingIOError) else None
    return False


def holders(path: Path) -> list[str]:
    """The processes of this machine that hold a lock on a file, as far as the kernel says."""
    found = set[str]()
    with suppress(OSError):
        file = path.stat()
        own = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place == own:  # else it waits for one
                found.add(pid)
    return sorted(found)


def is_living(results: Results) -> bool | None:
    """Whether a run, or a job of one, works on these results, on any node; None if unknown."""
    found = is_job_locked(results.living), is_job_locked(results.running)
    return None if found == (None, None) else any(found)
