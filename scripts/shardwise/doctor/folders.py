"""The results folder: its file system, and whether that does what commits and locks rely on.

The probes write into a folder of their own in it, which they remove.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from shardwise.devices import quarantine
from shardwise.devices.choose import SCHEDULER_CLIENTS
from shardwise.doctor.findings import Ask, Deadline, Finding, ask, fault, note, ok
from shardwise.files.paths import Results
from shardwise.units import human_bytes

_PAGE = 4096
_LITTLE_BYTES = 1024**3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
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

_TRY_LOCK = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(9)
"""


def findings(results: Path, deadline: Deadline) -> Iterator[Finding]:
    """File system and free space, then the probes, in a folder that is removed."""
    folder = existing(results)
    if not folder.is_dir():
        text = f"{folder} is no folder, but a file or a link to nothing"
        yield fault("file system", text, "move it away, or name another: key results of the config")
        return
    found = mount(folder, psutil.disk_partitions(all=True))
    cluster = any(shutil.which(client) for client in SCHEDULER_CLIENTS)
    yield _place(results, folder, found, cluster)
    yield _space(folder)
    yield from quarantined(Results(results))
    try:
        with tempfile.TemporaryDirectory(
            prefix=".shardwise-doctor-", dir=folder, ignore_cleanup_errors=True
        ) as name:
            probes = Path(name)
            yield direct(probes)
            yield renames(probes)
            yield locks(probes, deadline, found)
    except OSError as error:
        text = f"a small file cannot be written and renamed in {folder}: {error.strerror}"
        cure = (
            "make room (see df -h and df -i), or ask for more quota"
            if error.errno in _NO_ROOM
            else _ELSEWHERE
        )
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


def _place(results: Path, folder: Path, found: Any, cluster: bool) -> Finding:
    where = str(folder) if folder == results.absolute() else f"{results} (not made yet)"
    facts = {"path": str(results.absolute()), "folder": str(folder)}
    if found is None:
        return note("file system", f"{where}: the kernel does not tell", type=None, **facts)
    caveats = (text for name, text in CAVEATS.items() if found.fstype.startswith(name))
    caveat = next(caveats, "")
    text = f"{where} is on {found.fstype}, mounted at {found.mountpoint}"
    text = f"{text}: {caveat}" if caveat else text
    local = found.fstype in _OF_THIS_MACHINE
    facts |= {"type": found.fstype, "mount": found.mountpoint, "local": local}
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


def quarantined(results: Results) -> Iterator[Finding]:
    """The devices, of any node, that no shard of these results is given."""
    for entry in quarantine.entries(results):
        cure = f"once it is mended: {quarantine.clearing(results, entry.uuid)}"
        yield note("quarantine", str(entry), cure, **asdict(entry))


def direct(folder: Path) -> Finding:
    """Write and read a page around the page cache."""
    path, page = folder / "direct", mmap.mmap(-1, _PAGE)  # anonymous memory begins at a page
    page.write(b"direct".ljust(_PAGE, b"."))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.pwrite(descriptor, page, 0)
            back = mmap.mmap(-1, _PAGE)
            same = os.preadv(descriptor, [back], 0) == _PAGE and back[:] == page[:]
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        text = f"no direct I/O ({error.strerror}): files go through the page cache, which is slower"
        return note("direct I/O", text, works=False)
    if not same:
        return fault("direct I/O", "reads back other bytes than were written", _ELSEWHERE)
    return ok("direct I/O", "works", works=True)


def renames(folder: Path) -> Finding:
    """Replace a file that somebody reads: by its name the new one, in open hands the old one."""
    path, new = folder / "result", folder / ".result.tmp"
    path.write_bytes(b"old")
    with open(path, "rb") as reader, open(new, "wb") as writer:
        writer.write(b"new")
        writer.flush()
        os.fsync(writer.fileno())
        os.replace(new, path)
        _flush(folder)
        by_name, in_hand = path.read_bytes(), reader.read()
    if (by_name, in_hand) != (b"new", b"old"):
        text = f"a replaced file reads {by_name!r} by its name and {in_hand!r} where it was open"
        return fault("rename", text, _ELSEWHERE)
    return ok("rename", "replaces a file at once, and is flushed with its folder")


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locks(
    folder: Path, deadline: Deadline, found: Any = None, ask: Ask = ask,
    flock: Callable[[int, int], None] = fcntl.flock,
) -> Finding:  # fmt: skip
    """Lock a file, and let a second process try the same, then once more after the release."""
    path = folder / "lock"
    path.touch()
    line = [sys.executable, "-c", _TRY_LOCK, str(path)]
    with open(path, "r+b") as file:
        try:
            flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return _lockless(f"refused: {error.strerror}")
        held = ask(line, deadline).code
        with contextlib.suppress(OSError):
            flock(file.fileno(), fcntl.LOCK_UN)
        released = ask(line, deadline).code
    if None in (held, released):
        return _lockless("no answer in time")
    if held == 0:
        return _lockless("two processes got the same lock at once")
    if (held, released) != (9, 0):
        return _lockless(f"a second process could not even try (codes {held}, {released})")
    near = {"nolock", "localflock", "local_lock=all", "local_lock=flock"}
    near &= set(found.opts.split(",") if found else ())
    if near:
        return _lockless(f"the mount option {min(near)} keeps locks on one node")
    return ok("locks", "one process of two gets a lock, and the other one after it", works=True)


def _lockless(reason: str) -> Finding:
    text = f"{reason}: a second run on the same results would not be noticed"
    return note("locks", text, "run one snakemake at a time on these results", works=False)
