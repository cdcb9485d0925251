"""The ways a stage can fail, and the exit code that each of them ends with."""

import errno
import logging
import os
import reprlib
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger("shardwise")
_P, _T = ParamSpec("_P"), TypeVar("_T")

FAULT = 1
"""The exit code of what no stage raises on purpose."""

FINDERS = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""Variables by which other packages and libraries are found than those that were installed."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a disk, or a user's share of it, has no room."""


class ShardwiseError(Exception):
    """Base of every failure that is explained to the user in one message."""

    exit_code = 1


class InputError(ShardwiseError):
    """Bad input or bad config: the user has to change something first."""

    exit_code = 2


class BadMatrix(InputError):  # noqa: N818 - named after what was found
    """A matrix is not finite, or its product cannot be kept: what was found, and the cure.

    ``key`` is what is to blame: ``input``, ``right``, or the ``product`` of finite factors;
    ``matrix`` is its index in the whole stack.
    """

    def __init__(self, what: str, cure: str, key: str, matrix: int) -> None:
        super().__init__(f"{what}; {cure}")
        self.what, self.cure, self.key, self.matrix = what, cure, key, matrix


class IntegrityError(ShardwiseError):
    """A file, a product or a sum is not what its receipt or its proof says."""

    exit_code = 3


class TryAgain(ShardwiseError):  # noqa: N818 - named after what to do
    """Nothing is wrong, but it cannot be done now: out of memory or disk, or nobody answers."""

    exit_code = 75


class DeviceFailed(ShardwiseError):  # noqa: N818 - named after what happened
    """What computes is lost, busy or full, or computed wrongly: this process must not go on.

    ``suspect`` says that the device itself is to blame. Then no task of the same run takes it.
    """

    exit_code = 75

    def __init__(self, what: str, suspect: bool = False) -> None:
        super().__init__(what)
        self.suspect = suspect


class Terminated(BaseException):
    """SIGTERM arrived, or the terminal was closed: clean up and end."""


def of_code(code: int, text: str) -> ShardwiseError:
    """The error of an exit code, as another process has sent it; of one that is no error's, too."""
    kinds = (InputError, IntegrityError, TryAgain)
    error = next((kind for kind in kinds if kind.exit_code == code), ShardwiseError)(text)
    error.exit_code = code
    return error


def hide_frames(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have a function raise our errors without the frames below it: a notebook shows its call."""

    @wraps(function)
    def call(*words: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*words, **named)
        except ShardwiseError as error:
            raise error.with_traceback(None) from None

    return call


def short(value: Any) -> str:
    """What was found, for a message: some 100 letters at most, whatever a hostile file holds."""
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother, brief.maxlong = 2, 80, 80, 40
    try:
        return brief.repr(value)[:120]
    except ValueError:  # Python prints no number of more than 4,300 digits
        return "a number of too many digits"


def some(names: Iterable[str], most: int = 20) -> str:
    """The first of many names, for a message."""
    found = list(names)
    return ", ".join(found[:most]) + (", …" if len(found) > most else "")


def changed(path: object) -> IntegrityError:
    """That an input is not what it was when its first byte was read."""
    return IntegrityError(
        f"{path} has changed while it was read; nothing was written. Let whatever writes it "
        "finish, then run snakemake again"
    )


def one_line(text: str) -> str:
    """A text without what would break its line, or steer a terminal: a file may be named so."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: str) -> str:
    """A text of anybody's as a terminal may have it: its lines and tabs, and nothing else."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def tell(text: str) -> None:
    """Show the user a text, on stderr."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def of_system(error: OSError) -> ShardwiseError:
    """The error to raise for an error of the disk; it tells the user what to do."""
    if isinstance(error, IsADirectoryError):  # it will be one the next time, too
        return InputError(
            f"{error}; a folder is in the place of a file: move it away, then run again; nothing "
            "was committed"
        )
    room = "make room on the disk, or in your quota; " if error.errno in FULL else ""
    if room and error.filename and _out_of_inodes(error.filename):
        room = "the disk has room, but no inode for another file: remove files; "
    if error.errno == errno.EROFS:
        room = "this machine may only read that disk: correct that, or use another folder; "
    return TryAgain(f"{error}; {room}nothing was committed, try again")


def of_import(error: ImportError) -> InputError:
    """A package that does not load as the user is told of it, with what names others instead."""
    first: BaseException = error
    while first.__cause__ or first.__context__:
        first = first.__cause__ or first.__context__  # type: ignore[assignment]
    named = [f"{name}={os.environ[name]}" for name in FINDERS if os.environ.get(name)]
    cure = f"unset what names another: {', '.join(named)}" if named else "install it anew"
    return InputError(f"a package does not load: {' '.join(str(first).split())}; {cure}")


def _out_of_inodes(path: str | bytes) -> bool:
    """Whether a disk takes no more files, however small; some, such as btrfs, count none."""
    try:
        disk = os.statvfs(next(p for p in Path(os.fsdecode(path)).parents if p.exists()))
    except OSError:
        return False
    return disk.f_files > 0 == disk.f_favail and disk.f_bavail > 0


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Name the file in errors of the disk that name none, as those of a read or a write."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def device_errors(xp: Any) -> tuple[type[BaseException], ...]:
    """The exceptions by which cupy tells that a device is lost, busy or full; none of NumPy."""
    if not hasattr(xp, "cuda"):
        return ()
    return (
        xp.cuda.memory.OutOfMemoryError,
        xp.cuda.runtime.CUDARuntimeError,
        xp.cuda.driver.CUDADriverError,
        xp.cuda.cublas.CUBLASError,
    )


def verdict(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and what the user is told of it."""
    if isinstance(error, ShardwiseError):
        return error.exit_code, str(error)
    # A refused fork is a BlockingIOError; Python has no class of its own for a refused thread.
    if isinstance(error, BlockingIOError) or str(error) == "can't start new thread":
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        most = "any number" if most == resource.RLIM_INFINITY else most
        return 75, (
            f"no more threads or processes can be started here: this user may have {most} "
            "(ulimit -u), and a container or job as many as its pids.max; raise the limit, end "
            "other processes, or try again; if memory is short, ask for more (mem_mb)"
        )
    by_signal = "ended by SIGTERM or a closed terminal: cancelled, preempted, or out of time"
    for kind, code, words in (
        (MemoryError, 75, "out of host memory; ask for more (mem_mb), or try again"),
        (Terminated, 128 + signal.SIGTERM, by_signal),
        (KeyboardInterrupt, 128 + signal.SIGINT, "interrupted"),
        (PermissionError, 2, str(error)),
    ):
        if isinstance(error, kind):
            return code, words
    if isinstance(error, OSError):
        told = of_system(error)
        return told.exit_code, str(told)
    if isinstance(error, ImportError) and not (error.name or "").startswith("shardwise"):
        return InputError.exit_code, str(of_import(error))
    return FAULT, "this is a fault of shardwise, not yours; please report it"


def explain(error: BaseException) -> tuple[int, str]:
    """Log an error as it is told to the user, a fault with where it happened; its `verdict`."""
    code, words = verdict(error)
    log.error("%s", words, exc_info=error if code == FAULT else None)
    return code, words


def terminate(signum: int, frame: FrameType | None) -> None:
    """What SIGTERM and SIGHUP do: work in progress is cleaned up as after an error.

    A second one must not cut this short: schedulers send it to a process and also to its parent,
    which passes it on.
    """
    signal.signal(signum, signal.SIG_IGN)
    raise Terminated


def leave_on_interrupt() -> None:
    """Let a Ctrl-C, if it is not ignored, end this process in a sentence: no job has begun yet."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _leave(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"\nshardwise: interrupted before any job began\n")
    os._exit(128 + signum)
