"""Leases: one lock file per device, so that two tasks of a node never compute on the same device.

A task takes a lease with ``flock`` and keeps the descriptor open until it ends. Its children
inherit the descriptor, and the kernel drops the lock once the last of them is gone, however it
died: no lease has to be cleaned up. Standard library only.
"""

import contextlib
import fcntl
import os
import pwd
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import TryAgain
from shardwise.units import clock

FOLDER = Path("/tmp/shardwise-leases")
"""The folder of the leases: local to the node, and unlike TMPDIR the same for all its users."""

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
_COMMAND_CHARACTERS = 400
_TEXT_BYTES = 4096  # the most that is read from a lease

_HELD: dict[Path, int] = {}
"""Descriptors of this process's leases, never closed: they last as long as it and its children."""


@dataclass(frozen=True)
class Holder:
    """Who took a lease, in words; and the scheduler's job, if any, as :func:`host.job` names it."""

    words: str
    job: str | None = None


def folder() -> Path:
    """The folder of this node's leases; the variable SHARDWISE_LEASES names another one."""
    return Path(os.environ.get("SHARDWISE_LEASES") or FOLDER)


def _path(uuid: str) -> Path:
    return folder() / f"{uuid.replace('/', '_')}.lease"


def take(uuid: str, job: str | None = None) -> bool:
    """Lease a device to this process; False if another process holds it.

    The scheduler's `job` is written into the lease for others to read. Raises `TryAgain` if the
    folder of the leases cannot be shared safely, or cannot be used.
    """
    path = _path(uuid)
    if path in _HELD:
        return True
    program, *words = sys.argv or [""]
    what = shlex.join([Path(program).name, *words])[:_COMMAND_CHARACTERS]
    who = f"process {os.getpid()} of {user_name(os.getuid())} since {clock(time.time())} ({what})"
    try:
        descriptor = _locked(path)
    except OSError as error:
        raise _unusable(f"{error.strerror}: {error.filename or path}") from error
    if descriptor is None:
        return False
    _HELD[path] = descriptor
    os.set_inheritable(descriptor, True)
    # Only the lock counts: on a full disk the lease merely lacks its signature.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        # An argument that is not valid text, such as a file name, is no reason to fail.
        os.pwrite(descriptor, f"{_printable(who)}\n{job or ''}\n".encode(errors="replace"), 0)
    return True


def holder(uuid: str) -> Holder | None:
    """Who holds the lease of a device, or None if nobody does.

    The look locks the file for a moment: a task that tries to take the lease then must try again.
    """
    try:
        descriptor = os.open(_path(uuid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None  # never leased, or not ours to see
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Every user may write to a lease, so none of it is trusted.
        text = os.pread(descriptor, _TEXT_BYTES, 0).decode(errors="replace")
        who, job, *_ = [*map(_printable, text.split("\n")), "", ""]
        return Holder(who or "a process that does not say who it is", job or None)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _locked(path: Path) -> int | None:
    """A descriptor of the lease file with the lock on it; None if another process has it."""
    while True:
        _make_folder(path.parent)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as by a cleanup of /tmp
            descriptor = _open(path)
            same = False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # If not, another task may have locked a new file.
                same = os.path.samestat(os.fstat(descriptor), os.lstat(path))
            except BlockingIOError:
                return None
            finally:
                if not same:
                    os.close(descriptor)
            if same:
                return descriptor


def _make_folder(place: Path) -> None:
    """Make the folder; refuse one that tasks would not share, or where others could swap files."""
    if not place.is_absolute():
        raise TryAgain(
            f"SHARDWISE_LEASES is {str(place)!r}, a relative path: tasks in other folders would "
            "not see these leases; name an absolute one, the same for all users of the node"
        )
    with _shared_by_all(), contextlib.suppress(FileExistsError):
        place.mkdir(0o1777)
    status = os.lstat(place)
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable("it is a link or a file, not a folder")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise _unusable(f"its mode is {status.st_mode & 0o7777:o}: anyone may remove leases")


def _open(path: Path) -> int:
    """A descriptor of the lease file, which is made if it is missing."""
    # If fs.protected_regular is set, O_CREAT is refused on a file of another user, even of mode
    # 666. So O_CREAT is used for new files only.
    with _shared_by_all(), contextlib.suppress(FileExistsError):
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
    descriptor = os.open(path, _FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise _unusable(f"{path.name} in it is not a plain file, or is hard-linked")
    return descriptor


@contextlib.contextmanager
def _shared_by_all() -> Iterator[None]:
    """Let new folders and files have their full mode from the start."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def user_name(number: int) -> str:
    """The name of a user; in a container without that user, the number."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


def _unusable(reason: str) -> TryAgain:
    return TryAgain(
        f"device leases cannot be kept in {folder()}: {reason}. It must be a folder on this node "
        f"that all users may write to: mkdir -m 1777 {shlex.quote(str(folder()))}, or name another "
        "one for all users of the node in SHARDWISE_LEASES"
    )
