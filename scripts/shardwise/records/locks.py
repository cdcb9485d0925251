"""Locks on a results folder: who may work in it at the same time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shardwise.errors import TryAgain
from shardwise.files.paths import Results


def take_lock(path: Path, busy: str) -> BinaryIO:
    """Take an exclusive lock, held until the file is closed; if it is taken, TryAgain says `busy`.

    A disk without locks keeps nobody out. Two reduces at once there still write the same bits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+b")  # noqa: SIM115 - the open file holds the lock
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise TryAgain(busy) from None
    except OSError:
        pass
    return file


@contextmanager
def hold_job_lock(results: Results) -> Iterator[None]:
    """Hold the lock that all jobs on these results share."""
    path = results.living
    with ExitStack() as stack:
        # A disk that is full, read-only or without locks must not stop a job; its stage reports it.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+b"))
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_job_locked(path: Path) -> bool | None:
    """Whether a job holds this lock; None if there is none, or none that this user can test."""
    if not os.access(path, os.W_OK):
        return None
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return True if isinstance(error, BlockingIOError) else None
    return False


def is_living(results: Results) -> bool | None:
    """Whether a run, or a job of one, works on these results, on any node; None if unknown."""
    found = is_job_locked(results.living), is_job_locked(results.running)
    return None if found == (None, None) else any(found)
