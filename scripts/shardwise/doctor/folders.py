"""The results folder: its disk, whether other nodes see it, and its free space."""

import os
import shutil
from pathlib import Path

from shardwise.devices.choose import SCHEDULER_CLIENTS
from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.units import human_bytes

_OF_THIS_MACHINE = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"}


def check(ask: Call, results: Path, which: Call = shutil.which) -> Findings:
    """The disk that the folder is on, or will be; nothing is written there."""
    path, name_another = results.absolute(), "name another: key results of the config"
    folder = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        found, allowed = f"{folder} is not a writable folder", "one that jobs may write to"
        yield Finding("fault", "folder", found, allowed, name_another)
        return
    line = ["findmnt", "--raw", "--noheadings", "--output", "FSTYPE,TARGET", "--target"]
    reply = ask([*line, str(folder)])
    if reply.code == 0:  # else nothing is known, as in a chroot
        kind, mounted = reply.last.split(" ", 1)
        seen = kind not in _OF_THIS_MACHINE or not any(map(which, SCHEDULER_CLIENTS))
        found = f"{results} is on {kind}, mounted at {mounted}"
        allowed = "a disk that all nodes see, unless all jobs run on this machine"
        yield judge(seen, "file system", found, allowed, name_another)
    free = human_bytes(shutil.disk_usage(folder).free)
    yield Finding("ok", "space", f"{free} free; a dry run says what the results need")
