"""Locks on a results folder: who may work in it at the same time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shardwise.errors import IntegrityError, TryAgain
from shardwise.files import small
from shardwise.files.paths import Results

_LOOK_SECONDS = 0.05
"""The wait before a second try: a process that only tests a lock holds it for less than this."""


def take_lock(path: Path, busy: str) -> BinaryIO:
    """Take an exclusive lock, held until the file is closed; if it is taken, TryAgain says `busy`.

    A disk without locks keeps nobody out. Two reduces at once there still write the same bits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+b")  # noqa: SIM115 - the open file holds the lock
    try:
        _lock(file, fcntl.LOCK_EX)
    except BlockingIOError:
        file.close()
        raise TryAgain(busy) from None
    except OSError:
        pass
    return file


def _lock(file: BinaryIO | int, how: int) -> None:
    """Take a lock, or raise BlockingIOError; try twice, as the holder may only test the lock."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_LOOK_SECONDS)
        fcntl.flock(file, how | fcntl.LOCK_NB)


@contextmanager
def hold_job_lock(results: Results) -> Iterator[None]:
    """Hold the lock that all jobs on these results share."""
    path = results.living
    with contextlib.ExitStack() as stack:
        # A disk that is full, read-only or without locks must not stop a job; its stage reports it.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+b"))
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_job_locked(path: Path) -> bool:
    """Whether a job holds this lock."""
    try:
        with open(path, "r+b") as file:
            _lock(file, fcntl.LOCK_EX)
    except OSError as error:  # or no job was ever here, or the disk has no locks
        return isinstance(error, BlockingIOError)
    return False


def dispatcher(results: Results) -> str:
    """What the process that hands out shards has written about itself; empty if there is none."""
    with contextlib.suppress(OSError):
        return results.dispatching.read_bytes()[:4096].decode(errors="replace").strip()
    return ""


def is_living(results: Results) -> bool | None:
    """Whether a run, or a job of one, works on these results, on any node.

    None if that is unknown: no run was ever here, the disk has no locks, or the results are
    somebody else's.
    """
    if results.living.exists():
        if not os.access(results.living, os.W_OK):
            return None  # a lock can only be tested with write permission
        if is_job_locked(results.living):
            return True
    try:
        with small.opened(results.running) as (file, _):
            _lock(file, fcntl.LOCK_SH)
    except BlockingIOError:
        return True
    except (OSError, IntegrityError):
        return None
    return False
