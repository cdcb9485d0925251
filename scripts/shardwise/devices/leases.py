"""Leases: one lock file per device, so that two tasks of a node never compute on the same device.

A task takes a lease with ``flock`` and keeps the descriptor open until it ends. Its children
inherit the descriptor, and the kernel drops the lock once the last of them is gone, however it
died: no lease has to be cleaned up. Standard library only.
"""

import fcntl
import os
import shlex
import time
from contextlib import suppress
from pathlib import Path

from shardwise.errors import TryAgain, one_line
from shardwise.units import clock

# The folder of the leases: local to the node, and unlike TMPDIR the same for all its users.
FOLDER = Path("/tmp/shardwise-leases")
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK
# Descriptors of this process's leases, never closed: they last as long as it and its children.
_HELD: list[int] = []


def _path(uuid: str) -> Path:
    """The lease of a device; the variable SHARDWISE_LEASES names another folder, or one beside."""
    return FOLDER.parent / (os.environ.get("SHARDWISE_LEASES") or FOLDER) / f"{uuid}.lease"


def take(uuid: str) -> bool:
    """Lease a device to this process; False if it is leased already.

    Raises `TryAgain` if the folder of the leases cannot be used.
    """
    path = _path(uuid)
    try:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
    except OSError as error:
        raise TryAgain(
            f"device leases cannot be kept in {path.parent}: {error.strerror}. It must be a folder "
            "on this node that all users may write to: mkdir -m 1777 "
            f"{shlex.quote(str(path.parent))}, or name another one for all users of the node in "
            "SHARDWISE_LEASES"
        ) from error
    os.set_inheritable(descriptor, True)
    _HELD.append(descriptor)
    # Only the lock counts: on a full disk the lease merely lacks its signature.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        text = f"process {os.getpid()} of user {os.getuid()} since {clock(time.time())}"
        os.pwrite(descriptor, text.encode(), 0)
    return True


def holder(uuid: str) -> str | None:
    """Who holds the lease of a device, in words, or None if nobody does.

    The look locks the file for a moment: a task that tries to take the lease then must try again.
    """
    with suppress(OSError), open(os.open(_path(uuid), _FLAGS), "rb", 0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # Every user may write to a lease, so none of it is trusted.
            text = one_line(file.read(4096).decode(errors="replace"))
            return text or "a process that does not say who it is"
    return None  # free, never leased, or not ours to see


def _open(path: Path) -> int:
    """A descriptor of the lease file, which is made if it is missing, with its folder."""
    before = os.umask(0)  # all users of the node share them
    try:
        with suppress(FileExistsError):
            path.parent.mkdir(0o1777)
        # If fs.protected_regular is set, O_CREAT is refused on a file of another user, even of
        # mode 666. So it is used for new files only.
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
    finally:
        os.umask(before)
    return os.open(path, os.O_RDWR | _FLAGS)
