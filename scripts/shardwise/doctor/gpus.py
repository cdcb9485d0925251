"""GPUs: driver and cupy, each device, who holds it, and whether it computes."""

import importlib.metadata
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import psutil

from shardwise import host
from shardwise.devices import choose, grants, leases, nvml, wait
from shardwise.devices.leases import Holder
from shardwise.devices.nvml import Device, Process
from shardwise.doctor import findings as base
from shardwise.doctor.findings import FAULT, NOTE, OK, Deadline, Finding, Reply, fault, note, ok
from shardwise.errors import ShardwiseError
from shardwise.units import clock, human_bytes

_NAMES = re.compile(r"cupy(?:-cuda(\d+)x)?", re.IGNORECASE)

_KVIKIO = re.compile(r"(?:lib)?kvikio(?:-cu\d+)?", re.IGNORECASE)
_GDS = Path("/proc/driver/nvidia-fs/version")
"""There where the driver of GPUDirect Storage is loaded."""

UNLISTED_BYTES = 512 * 1024**2
"""Memory in use beside all that is listed: the driver keeps up to some hundred MiB for itself."""

_LONGEST = 120
"""Letters of a command that are shown."""

_PRODUCT = """
import json, os, sys
from shardwise.devices import leases
from shardwise.errors import TryAgain
how, uuid = sys.argv[1:]
sys.argv = ["doctor"]  # what the lease names
try:
    if how == "lease" and not leases.take(uuid):
        raise TryAgain("it is leased by now")
except TryAgain as error:
    print(json.dumps({"hindrance": str(error).partition(". ")[0]}))
    sys.exit()
os.environ.update(CUDA_VISIBLE_DEVICES=uuid, CUDA_DEVICE_ORDER="PCI_BUS_ID",
                  CUPY_CACHE_IN_MEMORY="1")
import cupy
print(json.dumps({"cuda": cupy.cuda.runtime.runtimeGetVersion()}), flush=True)
ones = cupy.ones((256, 256), "float32")
print(json.dumps({"sum": float((ones @ ones).sum())}), flush=True)
"""
"""Multiplies ones, which needs NVRTC, cuBLAS and a device that computes. Meanwhile the device is
leased, as by a task; the kernel frees it with the process."""

_SUM = float(256**3)


def installed() -> dict[str, str]:
    """The versions of the cupy packages that are installed, by their names."""
    found = ((d.metadata["Name"] or "", d.version) for d in importlib.metadata.distributions())
    return {name: version for name, version in found if _NAMES.fullmatch(name)}


def findings(deadline: Deadline, backend: str = "auto") -> Iterator[Finding]:
    """All about GPUs; nothing if the config asks for NumPy."""
    if backend == "numpy":
        yield note("backend", "numpy, as the config says: devices are neither used nor checked")
        return
    cuda = choose.driver_cuda_version()
    cupy = _cupy(installed(), cuda, backend)
    if cuda is None:
        text = "no NVIDIA driver here (libcuda.so.1)"
        if backend == "cupy":
            cure = "run on a GPU node, or set backend: numpy"
            yield fault("driver", text, cure, cuda=None)
        else:
            yield note("driver", f"{text}: computing with NumPy (backend: {backend})", cuda=None)
        yield cupy
        return
    warned = MemoryHandler(sys.maxsize, sys.maxsize)  # else nobody would see what is logged
    logger = logging.getLogger("shardwise")
    logger.addHandler(warned)
    version, present, refused = "", [], []
    try:
        version, present = nvml.driver_and_devices()
    except ShardwiseError as error:
        refused = [base.refused("devices", error, "see what nvidia-smi says")]
    finally:
        logger.removeHandler(warned)
    text = f"{version}, runs CUDA up to {_dotted(cuda)}".removeprefix(", ")
    yield ok("driver", text, cuda=cuda, version=version)
    yield from (cupy, _kvikio(kvikio_version(), cuda), *refused)
    if refused:
        return
    for record in warned.buffer:
        yield note("devices", record.getMessage(), "ask the admin: dmesg names its errors (Xid)")
    yield from _devices(present, deadline, cupy.level != FAULT)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _cupy(packages: dict[str, str], driver: int | None, backend: str) -> Finding:
    """The cupy that is installed, beside what the driver runs."""
    shown = ", ".join(f"{name} {version}" for name, version in packages.items())
    fitting = [major for major in choose.CUDA_MAJORS if driver and major <= driver // 1000]
    built = _NAMES.fullmatch(next(iter(packages), ""))
    level, cure = FAULT, host.install(fitting[-1], anew=True) if fitting else ""
    if driver is None:
        wanted = f"where jobs run on GPUs: {host.install(12)} (or 13, as the driver of the nodes)"
        level, cure = NOTE, wanted if backend == "cupy" and not packages else ""
        text = f"{shown}; it has to fit the driver of the nodes" if shown else "not installed"
    elif not fitting:
        text = f"cupy needs a driver for CUDA {choose.CUDA_MAJORS[0]} or newer"
        cure = "ask the admin for a newer driver, or set backend: numpy"
    elif len(packages) > 1:
        text = f"several are installed and conflict: {shown}"
    elif built is None:
        text, cure = "not installed", host.install(fitting[-1])
    elif built[1] and int(built[1]) not in fitting:
        text = f"{shown} is built for CUDA {built[1]}, but the driver runs {_dotted(driver)}"
    else:
        level, text, cure = OK, f"{shown} fits the driver", ""
    return Finding("cupy", level, text, cure, {"packages": packages}, 2 * (level == FAULT))


def kvikio_version() -> str | None:
    """The version of KvikIO that is installed."""
    found = ((d.metadata["Name"] or "", d.version) for d in importlib.metadata.distributions())
    return next((version for name, version in found if _KVIKIO.fullmatch(name)), None)


def _kvikio(version: str | None, driver: int) -> Finding:
    """Whether bytes can come from files to devices, and which way they go here."""
    if version is None:
        cure = f"{host.install(driver // 1000)}, or set backend: numpy"
        return fault("kvikio", "not installed, but tasks on a GPU read files by it", cure)
    way = "by GPUDirect Storage" if _GDS.exists() else "through host memory (no GPUDirect Storage)"
    return ok("kvikio", f"{version}; bytes go between files and devices {way}", version=version)


def _devices(present: Sequence[Device], deadline: Deadline, computes: bool) -> Iterator[Finding]:
    """Each device with its holders; last, whether one is free for a task."""
    if not present:
        text = "there is a driver, but no device"
        yield fault("devices", text, "in a job, ask for a GPU; else ask the admin", code=75)
        return
    try:
        grant = grants.read(os.environ)
        ours = list(present) if grant is None else grants.named(grant, present)
    except ShardwiseError as error:
        grant, ours = None, []
        yield base.refused("granted", error, "correct that variable")
    if grant is not None:
        text = f"{grant}: {', '.join(map(_name, ours))}"
        yield note("granted", text, source=grant.source, uuids=[d.uuid for d in ours])
    # What a scheduler has granted to this job alone, only its own tasks wait for.
    alone = grant is not None and grant.source != "lease" and len(ours) == 1
    leased = {device.uuid: leases.holder(device.uuid) for device in present}
    hindrances = {
        device.uuid: _hindrance(device, leased[device.uuid], device in ours, alone, computes)
        for device in present
    }
    tried = [uuid for uuid, hindrance in hindrances.items() if hindrance is None]
    how = "granted" if alone else "lease"
    lines = [[sys.executable, "-P", "-c", _PRODUCT, how, uuid] for uuid in tried]
    answers = base.ask_all(lines, deadline, base.environment())
    replies, free = dict(zip(tried, answers, strict=True)), 0
    for device in present:
        found = _device(device, replies.get(device.uuid), hindrances[device.uuid])
        free += found.level == OK
        yield replace(found, facts={**found.facts, "usable": found.level == OK})
        yield from _held(device, leased[device.uuid])
    if ours and computes:
        # A single granted device that was tried has reported what is wrong; no task waits for it.
        yield _leases(free, len(ours), alone and bool(tried))


def _hindrance(
    device: Device, lease: Holder | None, ours: bool, alone: bool, computes: bool
) -> str | None:
    """Why no product is tried on a device; None if one is."""
    if not computes:
        return "cupy does not work here"
    if not ours:
        return "it is not granted here"
    if lease is not None and (not alone or lease.job == host.job(os.environ)):
        return "it is leased"
    return None if alone else wait.obstacle(device, 0)


def _leases(free: int, count: int, alone: bool) -> Finding:
    """How many of some devices wait for a task, and whether it can lease one."""
    folder = leases.folder()
    facts = {"folder": str(folder), "free": free}
    if free or alone:
        text = f"{free} of {count} devices free for a task; leases lie in {folder}"
        return ok("leases", text, **facts)
    text = (
        "no device is free: a task waits for its turn, and ends with 75 when no device has changed "
        f"hands for {wait.wait_seconds(host.job(os.environ)) / 60:.0f} minutes"
    )
    return fault("leases", text, "wait, or see above what keeps each", code=75, **facts)


def _device(device: Device, answer: Reply | None, hindrance: str | None) -> Finding:
    """The device itself, and the outcome of the product on it, or why there was none."""
    name = _name(device)
    text = (
        f"{device.name}, {human_bytes(device.free)} free of {human_bytes(device.memory)}, "
        f"compute mode {device.mode}, {device.uuid}"
    )
    facts: dict[str, Any] = {
        "uuid": device.uuid, "device": device.name, "index": device.index, "memory": device.memory,
        "free": device.free, "mode": device.mode, "works": None,
    }  # fmt: skip
    result: dict[str, Any] = {} if answer else {"hindrance": hindrance}
    for line in answer.said() if answer else ():
        result |= line
    if "hindrance" in result:
        return note(name, f"{text}: no product was tried: {result['hindrance']}", **facts)
    facts |= {"works": result.get("sum") == _SUM, "cuda": result.get("cuda")}
    if facts["works"]:
        return ok(name, f"{text}: computes", **facts)
    if answer.code is None:
        text = f"{text}: a small product hangs (or cupy, on a slow disk, takes long to import)"
        cure = "try again with --time-limit 60; if it persists, ask the admin for a reset"
        return fault(name, text, cure, code=75, **facts)
    if "cuda" not in result:
        text = f"cupy cannot be used: {answer.reason}"
        return fault(name, text, f"install it again: {host.install(anew=True)}", **facts)
    wrong = f"a product of ones sums to {result.get('sum')}, not {_SUM:.0f}"
    text = f"{text}: a small product fails: {answer.reason if answer.code else wrong}"
    cure = "leave it out with CUDA_VISIBLE_DEVICES, and tell the admin: dmesg names its errors"
    return fault(name, text, cure, code=75, **facts)


def describe(pid: int) -> dict[str, Any] | None:
    """A process as people name it; None if not visible: ended, or of another container."""
    wanted = ["ppid", "username", "create_time", "status", "cmdline", "name"]
    try:
        found = psutil.Process(pid).as_dict(wanted, ad_value="")
    except psutil.Error:
        return None
    words = shlex.join(filter(None, found["cmdline"] or []))
    return {
        "pid": pid, "parent": found["ppid"], "user": found["username"],
        "since": found["create_time"], "zombie": found["status"] == psutil.STATUS_ZOMBIE,
        "command": (words or found["name"])[:_LONGEST],
    }  # fmt: skip


def _name(device: Device) -> str:
    """What a device is called in the report."""
    return f"GPU {device.index}"


def _held(device: Device, lease: Holder | None) -> Iterator[Finding]:
    """The lease of a task, the processes on a device, and the memory that none of them uses."""
    if lease:
        yield note(_name(device), f"leased to {lease}", uuid=device.uuid, lease=True, **vars(lease))
    listed = {process.pid: process for process in (*device.others, *device.processes)}
    for process in listed.values():
        yield _holder(device, process)
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
        yield note(_name(device), text, cure, uuid=device.uuid, unlisted=unlisted)


def _holder(device: Device, process: Process) -> Finding:
    """A process on a device, as far as it is visible."""
    memory = "" if process.memory is None else f", {human_bytes(process.memory)}"
    facts = {"uuid": device.uuid, "pid": process.pid, "memory": process.memory}
    who = describe(process.pid)
    if who is None:
        text = f"held by process {process.pid}{memory}: not visible here (another container's?)"
        return note(_name(device), text, visible=False, **facts)
    facts |= {"visible": True, **who}
    user = who["user"]
    text = f"process {process.pid} of {user} since {clock(who['since'])}{memory} ({who['command']})"
    if who["zombie"]:
        cure = f"it ends with its parent, process {who['parent']}: ask {user} or the admin"
        return note(_name(device), f"held by a zombie: {text}", cure, **facts)
    return note(_name(device), f"held by {text}", **facts)
