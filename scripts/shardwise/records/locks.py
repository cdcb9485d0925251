"""Locks on a results folder: who may work in it at the same time."""

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.errors import TryAgain
from shardwise.files.paths import Results

log = logging.getLogger(__name__)


@contextmanager
def alone(results: Results) -> Iterator[None]:
    """Be the only reduce on a results folder.

    Raises
    ------
    TryAgain
        Where another one works on it.
    """
    results.reducing.parent.mkdir(parents=True, exist_ok=True)
    with open(results.reducing, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TryAgain(f"another reduce works on {results.root}; let it finish") from None
        except OSError:
            pass  # a disk without locks; whoever publishes last leaves the same bits
        yield
