"""The ways a stage can fail, and the exit code that each of them ends with."""

import errno
import logging
import os
import reprlib
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

log = logging.getLogger("shardwise")

FAULT = 1  # the exit code of an error that no stage raises on purpose: a fault of shardwise
FINDERS = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD")
# Error numbers: the disk or the user's quota is full, or the file is larger than is allowed.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ShardwiseError(Exception):
    """Base of every failure that is explained to the user in one message."""

    exit_code = 1


class InputError(ShardwiseError):
    """Bad input or bad config: the user has to change something first."""

    exit_code = 2


class BadMatrix(InputError):  # noqa: N818 - named after what was found
    """A matrix of the whole stack is not finite, or its product cannot be kept."""

    def __init__(self, what: str, cure: str, matrix: int) -> None:
        super().__init__(f"{what}; {cure}")
        self.what, self.cure, self.matrix = what, cure, matrix


class IntegrityError(ShardwiseError):
    """A file, a product or a sum is not what its receipt or its proof says."""

    exit_code = 3


class TryAgain(ShardwiseError):  # noqa: N818 - named after what to do
    """Nothing is wrong, but it cannot be done now: no memory or disk space, or no answer."""

    exit_code = 75


class DeviceFailed(ShardwiseError):  # noqa: N818 - named after what happened
    """The device is lost, busy or full, or, a ``suspect``, computed wrongly: the process ends."""

    exit_code = 75

    def __init__(self, what: str, suspect: bool = False) -> None:
        super().__init__(what)
        self.suspect = suspect


class Terminated(BaseException):
    """SIGTERM arrived, or the terminal was closed: clean up and end."""


def of_code(code: int, text: str) -> ShardwiseError:
    """The error for the exit code and text of another process; ShardwiseError if it is unknown."""
    kinds = (InputError, IntegrityError, TryAgain)
    error = next((kind for kind in kinds if kind.exit_code == code), ShardwiseError)(text)
    error.exit_code = code
    return error


def short(value: Any) -> str:
    """A value for a message: 120 characters at most, whatever a hostile file holds."""
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother, brief.maxlong = 2, 80, 80, 40
    try:
        return brief.repr(value)[:120]
    except ValueError:  # Python prints no number of more than 4,300 digits
        return "a number of too many digits"


def some(names: Iterable[str], most: int = 20) -> str:
    """The first of many names, for a message."""
    found = list(names)
    return ", ".join(found[:most]) + ", …" * (len(found) > most)


def changed(path: object) -> IntegrityError:
    """The error for an input file that has changed since its first byte was read."""
    return IntegrityError(
        f"{path} has changed while it was read; nothing was written. Let the program that writes "
        "it finish, then start the run again"
    )


def unread(path: object, error: OSError) -> ShardwiseError:
    """The error for a file of ours that cannot be read; without permission it may be whole."""
    words = f"{path} cannot be read: {error.strerror}"
    if not isinstance(error, PermissionError):
        return IntegrityError(words)
    return InputError(f"{words}; its owner can run chmod -R a+rX on the results folder")


def one_line(text: str) -> str:
    """A text with unprintable characters escaped: even a file name may hold terminal codes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: str) -> str:
    """A text made safe for a terminal: all unprintable characters but newline and tab escaped."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def tell(text: str) -> None:
    """Show the user a text, on stderr."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Add the file's name to disk errors that lack one, as those of a read or a write do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def device_errors(xp: Any) -> tuple[type[BaseException], ...]:
    """The exceptions by which cupy reports a lost, busy or full device; none for NumPy."""
    if not hasattr(xp, "cuda"):
        return ()
    driver, runtime = xp.cuda.driver.CUDADriverError, xp.cuda.runtime.CUDARuntimeError
    return xp.cuda.memory.OutOfMemoryError, runtime, driver, xp.cuda.cublas.CUBLASError


def verdict(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and the message for the user."""
    if isinstance(error, ShardwiseError):
        return error.exit_code, str(error)
    # A refused fork is a BlockingIOError; Python has no class of its own for a refused thread.
    if isinstance(error, BlockingIOError) or str(error) == "can't start new thread":
        return 75, (
            "no more threads or processes can be started here (ulimit -u, or pids.max of a "
            "container); raise the limit, end other processes, or try again"
        )
    by_signal = "ended by SIGTERM or a closed terminal: cancelled, preempted, or out of time"
    for kind, code, words in (
        (MemoryError, 75, "out of host memory; ask for more (mem_mb), or try again"),
        (Terminated, 128 + signal.SIGTERM, by_signal),
        (KeyboardInterrupt, 128 + signal.SIGINT, "interrupted"),
        (PermissionError, 2, str(error)),
        (IsADirectoryError, 2, f"{error}; a folder is where a file should be: move it away"),
    ):
        if isinstance(error, kind):
            return code, words
    if isinstance(error, OSError):
        room = "make room on the disk, or in your quota; " if error.errno in FULL else ""
        return 75, f"{error}; {room}nothing was committed, try again"
    if isinstance(error, ImportError) and not (error.name or "").startswith("shardwise"):
        words = " ".join(str(error).split())
        named = [f"{name}={os.environ[name]}" for name in FINDERS if os.environ.get(name)]
        unset = f"unset what may lead to another: {', '.join(named)}; " if named else ""
        do = f"pip install {error.name or 'what is missing'} on every node; "
        return 2, f"a package does not load: {words}; {do}{unset}shardwise doctor says more"
    return FAULT, "this is a fault of shardwise, not yours; please report it"


def explain(error: BaseException) -> tuple[int, str]:
    """Log an error's message, and a traceback if it is our fault; return its `verdict`."""
    code, words = verdict(error)
    log.error("%s", words, exc_info=error if code == FAULT else None)
    return code, words


def terminate(signum: int, frame: FrameType | None) -> None:
    """Handle SIGTERM and SIGHUP by an exception, so that work is cleaned up as after an error."""
    # Schedulers send it to a process and to its parent, which passes it on: that must not end this.
    signal.signal(signum, signal.SIG_IGN)
    raise Terminated


def leave_on_interrupt() -> None:
    """Make Ctrl-C, unless ignored, end this process with a one-line message: no job has begun."""

    def leave(signum: int, frame: FrameType | None) -> None:
        os.write(2, b"\nshardwise: interrupted before any job began\n")
        os._exit(128 + signum)

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background
        signal.signal(signal.SIGINT, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
