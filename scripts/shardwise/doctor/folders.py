"""The results folder: its disk, whether locks work there, and its free space."""

import os
import shutil
from pathlib import Path

from shardwise.devices.choose import SCHEDULER_CLIENTS
from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.units import human_bytes

_CAVEATS = {
    "nfs": ": other nodes may see a finished file a minute later (latency-wait in the profiles)",
    "lustre": ": large files read fastest when striped: lfs setstripe -c -1 on the results folder",
    "tmpfs": ": in memory, gone after a reboot",
    "overlay": ": a layer of a container, gone with it",
}
_OF_THIS_MACHINE = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"}
_WITHOUT_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock"}


def check(ask: Call, results: Path, which: Call = shutil.which) -> Findings:
    """The disk that the folder is on, or will be; nothing is written there."""
    path, name_another = results.absolute(), "name another: key results of the config"
    folder = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        found, allowed = f"{folder} is not a writable folder", "one that jobs may write to"
        yield Finding("fault", "folder", found, allowed, name_another)
        return
    line = ["findmnt", "--raw", "--noheadings", "--output", "FSTYPE,OPTIONS,TARGET", "--target"]
    reply = ask([*line, str(folder)])
    if reply.code == 0:  # else nothing is known, as in a chroot
        kind, options, mounted = reply.last.split(" ", 2)
        caveat = next((text for name, text in _CAVEATS.items() if kind.startswith(name)), "")
        found = f"{results} is on {kind}, mounted at {mounted}{caveat}"
        allowed = "a disk that all nodes see, unless all jobs run on this machine"
        seen = kind not in _OF_THIS_MACHINE or not any(map(which, SCHEDULER_CLIENTS))
        yield judge(seen, "file system", found, allowed, name_another)
        alone = [one for one in options.split(",") if one in _WITHOUT_LOCKS]
        alone += ["no flock"] * (kind == "lustre" and "flock" not in options)
        do = "start one run at a time in a results folder; ask the admin for the option flock"
        found = f"mounted with {', '.join(alone)}" if alone else "this disk has locks"
        yield judge(not alone, "locks", found, "locks that all nodes see", do)
    free = human_bytes(shutil.disk_usage(folder).free)
    yield Finding("ok", "space", f"{free} free; a dry run says what the results need")
