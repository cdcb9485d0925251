"""Locks on a results folder: who may work in it at the same time."""

import contextlib
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import TryAgain
from shardwise.files.paths import Results


@contextmanager
def exclusive_lock(results: Results) -> Iterator[None]:
    """Be the only reduce on a results folder; `TryAgain` where another one works on it."""
    results.reducing.parent.mkdir(parents=True, exist_ok=True)
    with open(results.reducing, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TryAgain(f"another reduce works on {results.root}; let it finish") from None
        except OSError:
            pass  # a disk without locks; whoever publishes last leaves the same bits
        yield


@contextmanager
def hold_job_lock(results: Results, array: bool = False) -> Iterator[None]:
    """Hold the lock of a job on these results; a task of an ``array`` can be joined by a run."""
    path = results.living_array if array else results.living
    with contextlib.ExitStack() as stack:
        # A disk that is full, read-only or without locks must not stop a job; its stage will say.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+b"))
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_job_locked(path: Path) -> bool:
    """Whether a job holds this lock."""
    try:
        with open(path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no job has ever worked here, or this disk knows no locks
    return False
