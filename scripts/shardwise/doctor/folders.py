"""The file system of the results folder.

Whether it can be written to and has room, only a dry run can say, as it knows the size.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from shardwise.devices.choose import SCHEDULER_CLIENTS
from shardwise.doctor.findings import Finding, fault, note, ok

CAVEATS = {
    "nfs": "other nodes may see a finished file a minute later (latency-wait in the profiles)",
    "lustre": "large files read fastest when striped: lfs setstripe -c -1 on the results folder",
    "fuse": "a file system in user space: what it promises depends on the program behind it",
    "tmpfs": "it is in memory: gone after a reboot",
    "overlay": "a layer of a container: gone with the container",
}
"""What to know about a file system whose type begins like this."""

_OF_THIS_MACHINE = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"}


def findings(results: Path) -> Iterator[Finding]:
    """The disk that the folder is on."""
    path = results.absolute()
    folder = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not folder.is_dir():
        text = f"{folder} is no folder, but a file or a link to nothing"
        yield fault("file system", text, "move it away, or name another: key results of the config")
        return
    disk = mount(folder, psutil.disk_partitions(all=True))
    cluster = any(shutil.which(client) for client in SCHEDULER_CLIENTS)
    if disk is None:  # as in a chroot
        yield note("file system", f"{folder}: the kernel does not tell what it lies on")
    else:
        yield place(results, folder, disk, cluster)


def mount(folder: Path, mounts: Iterable[Any]) -> Any:
    """The mount, as psutil has it, that a folder lies on: the longest, of several the last.

    None where none is known.
    """
    real = os.path.realpath(folder)
    above = [one for one in mounts if f"{real}/".startswith(f"{one.mountpoint.rstrip('/')}/")]
    return max(reversed(above), key=lambda one: len(one.mountpoint), default=None)


def place(results: Path, folder: Path, disk: Any, cluster: bool) -> Finding:
    """What is known about the disk of a folder, which may not exist yet."""
    where = str(folder) if folder == results.absolute() else f"{results} (not made yet)"
    facts = {"path": str(results.absolute()), "folder": str(folder)}
    caveat = next((text for name, text in CAVEATS.items() if disk.fstype.startswith(name)), "")
    text = f"{where} is on {disk.fstype}, mounted at {disk.mountpoint}"
    text = f"{text}: {caveat}" if caveat else text
    local = disk.fstype in _OF_THIS_MACHINE
    facts |= {"type": disk.fstype, "mount": disk.mountpoint, "local": local}
    if local and cluster:
        cure = "unless all is one machine, jobs on other nodes need a shared disk: key results"
        return note("file system", f"{text}; other nodes do not see it", cure, **facts)
    return (note if caveat else ok)("file system", text, **facts)
