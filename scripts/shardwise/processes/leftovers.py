"""What killed processes left on this machine: Snakemake's temporary folders, MPI's shared memory.

Each Snakemake of ours holds a lock on a file in its folder (snakemake_logger_plugin_shardwise). A
folder whose lock nobody holds, and which no process uses, is removed by the next run. MPI's shared
memory loses its name while the ranks start, so it goes with the last rank.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LOCK = ".shardwise.lock"  # in each folder; the file holds what `machine` says
_PROCESSES = Path("/proc")
_USED = ("cwd", "root", "exe")


def machine() -> str:
    """An id of this machine since its start: not every disk shows the locks of others."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def nameless() -> None:
    """Take the names of this rank's segments of shared memory, once all ranks have them.

    MPICH would do so when it ends, which a killed rank does not.
    """
    with open(_PROCESSES / "self" / "maps", errors="replace") as lines:
        names = {match[0] for line in lines if (match := re.search(r"/\S*mpich_shm_\S+$", line))}
    for name in names:
        with contextlib.suppress(OSError):  # another rank was first
            os.unlink(name)


def remove_folders() -> list[Path]:
    """Remove the temporary folders of Snakemakes that were killed, and return them."""
    removed = []
    with contextlib.ExitStack() as stack:
        for path, descriptor in _abandoned(stack):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path / LOCK)):
                    shutil.rmtree(path)
                    removed.append(path)
    return removed


def _abandoned(stack: contextlib.ExitStack) -> list[tuple[Path, int]]:
    """The folders whose locks this process could take, and now holds."""
    candidates = Path(tempfile.gettempdir()).glob(f"snakemake*/{LOCK}")
    locks = {path.parent: _take(path, stack) for path in candidates}
    taken = {path: lock for path, lock in locks.items() if lock is not None}
    used = _used_of(taken)
    return sorted((path, lock) for path, lock in taken.items() if path not in used)


def _take(path: Path, stack: contextlib.ExitStack) -> int | None:
    """The descriptor of a lock that nobody holds; None where somebody does, or not ours."""
    try:
        if not (_is_mine(path.parent, stat.S_ISDIR) and _is_mine(path, stat.S_ISREG)):
            return None
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor if os.pread(descriptor, 64, 0).decode() == machine() else None
    except (OSError, ValueError):
        return None


def _is_mine(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether this user owns what a name stands for, and it is of this kind, and no link."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and kind(status.st_mode)


def _used_of(paths: Iterable[Path]) -> set[Path]:
    """Those that another process has open, mapped, or in its command line."""
    left: set[Path] = set(paths)
    used: set[Path] = set()
    for process in _PROCESSES.glob("[0-9]*") if left else ():
        if int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            texts = list(_uses(process))
            used |= {path for path in left - used if any(str(path) in text for text in texts)}
    return used


def _uses(process: Path) -> Iterator[str]:
    """What a process shows of the files that it uses."""
    for name in ("maps", "cmdline"):
        yield (process / name).read_text(errors="replace")
    for link in (*(process / name for name in _USED), *(process / "fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a kernel thread, or closed meanwhile
            yield os.readlink(link)
