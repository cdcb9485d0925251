"""The results folder: its file system, and whether that does what commits and locks rely on.

The probes write into a folder of their own in it, which they remove.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from shardwise.devices import quarantine
from shardwise.devices.choose import SCHEDULER_CLIENTS
from shardwise.doctor.findings import Finding, fault, note, ok
from shardwise.files.commit import commit
from shardwise.files.paths import Results
from shardwise.units import human_bytes

_LITTLE_BYTES = 1024**3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
_ELSEWHERE = "put the results into another folder, on another disk: key results of the config"

CAVEATS = {
    "nfs": "other nodes may see a finished file a minute later (latency-wait in the profiles)",
    "lustre": "large files read fastest when striped: lfs setstripe -c -1 on the results folder",
    "fuse": "a file system in user space: what it promises depends on the program behind it",
    "tmpfs": "it lies in memory: gone after a reboot",
    "overlay": "a layer of a container: gone with the container",
}
"""What to know of a file system whose type begins like this."""

_OF_THIS_MACHINE = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"}


def findings(results: Path) -> Iterator[Finding]:
    """File system and free space, then the probes, in a folder that is removed."""
    folder = existing(results)
    if not folder.is_dir():
        text = f"{folder} is no folder, but a file or a link to nothing"
        yield fault("file system", text, "move it away, or name another: key results of the config")
        return
    disk = mount(folder, psutil.disk_partitions(all=True))
    cluster = any(shutil.which(client) for client in SCHEDULER_CLIENTS)
    yield _place(results, folder, disk, cluster)
    yield _space(folder)
    for entry in quarantine.entries(Results(results)):
        cure = f"once it is mended: {quarantine.clearing(Results(results), entry.uuid)}"
        yield note("quarantine", str(entry), cure, **asdict(entry))
    try:
        with tempfile.TemporaryDirectory(
            prefix=".shardwise-doctor-", dir=folder, ignore_cleanup_errors=True
        ) as name:
            yield renames(Path(name))
            yield locks(Path(name), disk)
    except OSError as error:
        text = f"a small file cannot be written and renamed in {folder}: {error.strerror}"
        room = "make room (see df -h and df -i), or ask for more quota"
        cure = room if error.errno in _NO_ROOM else _ELSEWHERE
        yield fault("writing", text, cure, error=error.errno)


def existing(path: Path) -> Path:
    """The folder itself, or what is there already of the path to it."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if os.path.lexists(p))


def mount(folder: Path, mounts: Iterable[Any]) -> Any:
    """The mount, as psutil has it, that a folder lies on: the longest, of several the last."""
    real = os.path.realpath(folder)
    above = [one for one in mounts if f"{real}/".startswith(f"{one.mountpoint.rstrip('/')}/")]
    return max(reversed(above), key=lambda one: len(one.mountpoint), default=None)


def _place(results: Path, folder: Path, disk: Any, cluster: bool) -> Finding:
    where = str(folder) if folder == results.absolute() else f"{results} (not made yet)"
    facts = {"path": str(results.absolute()), "folder": str(folder)}
    if disk is None:
        return note("file system", f"{where}: the kernel does not tell", type=None, **facts)
    caveats = (text for name, text in CAVEATS.items() if disk.fstype.startswith(name))
    caveat = next(caveats, "")
    text = f"{where} is on {disk.fstype}, mounted at {disk.mountpoint}"
    text = f"{text}: {caveat}" if caveat else text
    local = disk.fstype in _OF_THIS_MACHINE
    facts |= {"type": disk.fstype, "mount": disk.mountpoint, "local": local}
    if local and cluster:
        cure = "unless all is one machine, jobs on other nodes need a shared disk: key results"
        return note("file system", f"{text}; other nodes do not see it", cure, **facts)
    return (note if caveat else ok)("file system", text, **facts)


def _space(folder: Path) -> Finding:
    disk = os.statvfs(folder)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    text = f"{human_bytes(free)} free of {human_bytes(total)}"
    if free < _LITTLE_BYTES:
        cure = "make room; a dry run tells what a job needs"
        return note("space", text, cure, free=free, total=total)
    return ok("space", text, free=free, total=total)


def renames(folder: Path) -> Finding:
    """Commit a file twice, the second time over the first."""
    path = folder / "result"
    for content in (b"old", b"new"):
        with commit(path) as writer:
            writer.write(content)
    if path.read_bytes() != b"new":
        return fault("rename", "a file that is replaced keeps its old bytes", _ELSEWHERE)
    return ok("rename", "replaces a file at once, and is flushed with its folder")


def locks(folder: Path, disk: Any = None) -> Finding:
    """Lock a file twice: locks belong to what was opened, not to processes."""
    path = folder / "lock"
    path.touch()
    with open(path, "r+b") as first, open(path, "r+b") as second:
        try:
            fcntl.flock(first, _TRY)
            fcntl.flock(second, _TRY)
        except BlockingIOError:
            pass
        except OSError as error:
            return _lockless(f"refused: {error.strerror}")
        else:
            return _lockless("two got the same lock at once")
    near = {"nolock", "localflock", "local_lock=all", "local_lock=flock"}
    near &= set(disk.opts.split(",") if disk else ())
    if near:
        return _lockless(f"the mount option {min(near)} keeps locks on one node")
    return ok("locks", "one of two gets a lock", works=True)


def _lockless(reason: str) -> Finding:
    text = f"{reason}: a second run on the same results would not be noticed"
    return note("locks", text, "run one snakemake at a time on these results", works=False)
