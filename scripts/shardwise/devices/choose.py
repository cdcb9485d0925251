"""Which NVIDIA driver and devices this node has, and which device is this task's.

Standard library only: the Makefile asks this module before anything is installed.
"""

import ctypes
import logging
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

from shardwise import host
from shardwise.devices import grants, leases
from shardwise.devices.nvml import Device, driver_version, present
from shardwise.errors import TryAgain
from shardwise.units import human_bytes

log = logging.getLogger(__name__)

SCHEDULER_CLIENTS = ("sbatch", "qsub")
CUDA_MAJORS = (12, 13)
# The errors of CUDA that only a faulty device causes: of ECC, NVLink, contained. A program may
# cause the others too, such as an illegal address or a full stack.
_BROKEN = (214, 220, 226)
# How long a task waits while no lease changes hands: large shards take some minutes. A job of a
# cluster asks for only some minutes beyond its work, and is killed after them without a word.
WAIT_SECONDS, JOB_WAIT_SECONDS = 3600.0, 300.0
# The average pause between two looks at the devices. Each is random, so that tasks that started
# together do not look together.
POLL_SECONDS = 1.0
# How long a job whose devices all failed in this run keeps them. Else the scheduler would give them
# to the next job in the queue, and retries would be used up in seconds.
HOLD_SECONDS = 60.0
_MESSAGE_SECONDS = 60.0

# The device of this process, once taken; it stays, as CUDA reads the variables only once.
_taken: list[Device] = []


def taken_uuid() -> str | None:
    """The UUID of the device that this process has taken; None before."""
    return _taken[0].uuid if _taken else None


def driver_cuda_version() -> int | None:
    """Highest CUDA version of the NVIDIA driver, such as 13000 for 13.0; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return None if failed else version.value


def cuda_extra() -> str:
    """The CUDA version to install cupy for: ``12``, ``13`` or ``none``.

    The newest that the driver found here runs. A login node has no driver, only a scheduler's
    client: there it is the older version, which newer drivers run as well.
    """
    found = driver_cuda_version()
    if found is None:
        found = 1000 * CUDA_MAJORS[0] if any(map(shutil.which, SCHEDULER_CLIENTS)) else 0
    return str(max((major for major in CUDA_MAJORS if major <= found // 1000), default="none"))


def is_fault(error: BaseException) -> bool:
    """Whether an error of cupy reveals that this process's device is faulty, not busy or full."""
    return getattr(error.__cause__ or error, "status", 0) in _BROKEN


def candidates(
    listed: Callable[[], list[Device]] | None = None, environ: Mapping[str, str] = os.environ
) -> list[Device]:
    """The devices that a task may choose from, as `grants.granted` says; TryAgain if none."""
    devices = (listed or present)()
    if not devices:
        raise TryAgain("there is an NVIDIA driver but no usable device: NVML lists none here")
    return grants.granted(environ, devices)


def workers(backend: str, barred: Collection[str] = ()) -> int:
    """How many workers can compute at once on this node: one per device that is not barred."""
    cpu = backend == "numpy" or driver_cuda_version() is None
    usable = [] if cpu else [one for one in candidates() if one.uuid not in barred]
    return max(1, len(usable))  # if no device is left, one worker will say so


def take(
    needed: int, limit: float | None = None, listed: Callable[[], list[Device]] | None = None,
    environ: MutableMapping[str, str] = os.environ, prefer: int | None = None,
    barred: Callable[[], Mapping[str, str]] = dict,
) -> Device:  # fmt: skip
    """Lease a device to this process until its end, and make CUDA see only that device.

    ``needed`` are bytes of its memory. The wait ends, with `TryAgain`, ``limit`` seconds after a
    lease last changed hands; left out, after an hour, or five minutes in a job of a cluster.
    ``prefer`` is the place of the device to look at first; None: the freest. ``barred`` returns
    the devices that failed, and how, by UUID; none of them is taken.
    """
    if _taken:
        return _taken[0]
    given, in_job = dict(environ), host.job(environ) is not None
    patience = (JOB_WAIT_SECONDS if in_job else WAIT_SECONDS) if limit is None else limit
    last_holders: dict[str, str | None] = {}
    last_change, last_message = 0.0, -math.inf
    while True:
        usable = _usable(candidates(listed, given), barred(), min(HOLD_SECONDS, patience) * in_job)
        if prefer is None:
            usable.sort(key=lambda device: -device.free / device.memory)
        first, holders, reasons = (prefer or 0) % len(usable), {}, []
        for device in usable[first:] + usable[:first]:
            why = obstacle(device, needed)
            if not why and leases.take(device.uuid):
                log.info("computing on %s, %s", device.uuid, device.name)
                environ.update({grants.VISIBLE: device.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
                _taken.append(device)
                return device
            holders[device.uuid] = who = leases.holder(device.uuid)
            why = f"leased to {who}" if who else why or "free again"
            reasons.append(f"{device.uuid} ({device.name}): {why}")
        now, situation = time.monotonic(), "; ".join(reasons)
        if holders != last_holders:
            last_holders, last_change = holders, now
        if now - last_change >= patience:
            raise TryAgain(
                f"no device became free, and no lease changed hands for {patience:.0f} s: "
                f"{situation}; end what hangs (shardwise doctor on this node shows it), "
                "and run again. If shards really take that long, start only as many at once as "
                "there are devices (snakemake --cores); by hand, --device-wait waits longer"
            )
        if now - last_message >= _MESSAGE_SECONDS:
            log.warning("waiting for a free device: %s", situation)
            last_message = now
        time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))


def _usable(devices: list[Device], failed: Mapping[str, str], hold: float) -> list[Device]:
    """The devices that have not failed, by place; TryAgain after a hold if there is none."""
    usable = [device for device in devices if device.uuid not in failed]
    if not usable:
        time.sleep(hold)
        reasons = "; ".join(failed[device.uuid] for device in devices)
        raise TryAgain(
            "no device is left for this task, as each that it may take has failed in this run: "
            f"{reasons}. Run again on another node, or ask for other devices; a new run may "
            "take these again"
        )
    return sorted(usable, key=lambda device: (device.index, device.uuid))


def obstacle(device: Device, needed: int) -> str | None:
    """Why a task should not compute on a device, leases aside; None if it may."""
    # It can halve its batches; idle contexts and the driver take some hundred MiB.
    enough = max(min(needed, device.memory // 2), device.memory // 10)
    free, memory, wanted = map(human_bytes, (device.free, device.memory, enough))
    said = f"other processes fill it: {free} of {memory} are free, {wanted} should be"
    return said if device.free < enough else None


def versions(cupy: Any) -> dict[str, str]:
    """The versions of what a GPU needs besides cupy: the CUDA runtime, cuBLAS and the driver."""
    runtime, cublas = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.cublas
    return {
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "cublas": str(cublas.getVersion(cupy.cuda.device.get_cublas_handle())),
        "driver": driver_version(),
    }
