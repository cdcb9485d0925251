"""Who holds a device: leases, processes as ``/proc`` tells them, and memory that nobody has."""

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.devices import nvml
from shardwise.devices.leases import Holder, user_name
from shardwise.devices.nvml import Device, Process
from shardwise.doctor.findings import Finding, note
from shardwise.units import clock, human_bytes

UNLISTED_BYTES = 512 * 1024**2
"""Memory in use beside all that is listed: the driver keeps up to some hundred MiB for itself."""

PROC = Path("/proc")
_LONGEST = 120


@dataclass(frozen=True)
class Person:
    """A process as people name it.

    Parameters
    ----------
    since
        When it began, in Unix seconds.
    zombie
        Whether it has ended, and its parent has not collected it.
    """

    pid: int
    parent: int
    user: str
    since: float
    command: str
    zombie: bool


def describe(pid: int, proc: Path = PROC) -> Person | None:
    """A process, or None where it is not visible: ended, hidden, or of another container."""
    folder = proc / str(pid)
    try:
        # The name of the program stands in brackets, and may hold brackets and spaces itself.
        before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        user, boot = folder.stat().st_uid, _boot(proc)
    except OSError:
        return None
    fields = after.split()
    command = shlex.join(word for word in words if word) or before.partition("(")[2]
    since = boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return Person(
        pid, int(fields[1]), user_name(user), since, command[:_LONGEST], fields[0] in ("Z", "X")
    )


def _boot(proc: Path) -> float:
    lines = (proc / "stat").read_text().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def name(device: Device) -> str:
    """What a device is called in the report."""
    return f"GPU {device.index}"


def held(
    device: Device, lease: Holder | None, person: Callable[[int], Person | None]
) -> Iterator[Finding]:
    """The lease of a task on a device, the processes there, and the memory that none of them has.

    Parameters
    ----------
    person
        Tells who a process is.
    """
    if lease:
        yield note(name(device), f"leased to {lease}", uuid=device.uuid, lease=True, **vars(lease))
    listed = {process.pid: process for process in (*device.others, *device.processes)}
    for process in listed.values():
        yield _holder(device, process, person(process.pid))
    if device.reserved is None:
        return  # what is not told cannot be told from what nobody has
    used = device.memory - device.free - device.reserved
    unlisted = nvml.unlisted(used, listed.values())
    if unlisted is not None and unlisted > UNLISTED_BYTES:
        text = f"{human_bytes(unlisted)} are in use by no process that is listed here"
        cure = (
            "another container's, or left by one that died: ask the admin to look with "
            "nvidia-smi and fuser -v /dev/nvidia*, and to reset the device when it is idle"
        )
        yield note(name(device), text, cure, uuid=device.uuid, unlisted=unlisted)


def _holder(device: Device, process: Process, who: Person | None) -> Finding:
    """A process on a device, as far as it is visible."""
    memory = "" if process.memory is None else f", {human_bytes(process.memory)}"
    facts = {"uuid": device.uuid, "pid": process.pid, "memory": process.memory}
    if who is None:
        text = f"held by process {process.pid}{memory}: not visible here (another container's?)"
        return note(name(device), text, visible=False, **facts)
    facts |= {"visible": True, **vars(who)}
    text = f"process {who.pid} of {who.user} since {clock(who.since)}{memory} ({who.command})"
    if who.zombie:
        cure = f"it ends with its parent, process {who.parent}: ask {who.user} or the admin"
        return note(name(device), f"held by a zombie: {text}", cure, **facts)
    return note(name(device), f"held by {text}", **facts)
