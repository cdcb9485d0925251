"""Which NVIDIA driver and devices this node has, and which device is this task's.

Standard library only: the Makefile asks this module before anything is installed.
"""

import ctypes
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from shardwise import host
from shardwise.devices import grants, wait
from shardwise.devices.nvml import Device, driver_version, present
from shardwise.errors import TryAgain

log = logging.getLogger(__name__)

SCHEDULER_CLIENTS = ("sbatch", "qsub")
CUDA_MAJORS = (12, 13)

_BROKEN = (214, 220, 226)
"""The CUDA errors that only a faulty device causes, by their number: of ECC, NVLink, contained.

Errors that a program may cause too, such as an illegal address or a full stack, are not listed.
"""

_taken: list["Taken"] = []
"""The device of this process, once taken; it stays, as CUDA reads the variables only once."""


class Taken(NamedTuple):
    """The device of this task; ``source`` is a scheduler that granted it, else ``lease``."""

    device: Device
    source: str


def taken_uuid() -> str | None:
    """The UUID of the device that this process has taken; None before."""
    return _taken[0].device.uuid if _taken else None


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
    version = driver_cuda_version()
    if version is None and any(map(shutil.which, SCHEDULER_CLIENTS)):
        return str(CUDA_MAJORS[0])
    fitting = [major for major in CUDA_MAJORS if major <= (version or 0) // 1000]
    return str(fitting[-1]) if fitting else "none"


def is_fault(error: BaseException) -> bool:
    """Whether an error of cupy reveals that this process's device is faulty, not busy or full."""
    return getattr(error.__cause__ or error, "status", 0) in _BROKEN


def candidates(
    listed: Callable[[], list[Device]] | None = None, environ: Mapping[str, str] = os.environ
) -> list[Device]:
    """The devices that a task may choose from: those granted to it, or all of this node.

    Raises `TryAgain` if there is none, or the grant names one that this node does not have.
    """
    grant, devices = grants.read(environ), (listed or present)()
    if not devices:
        raise TryAgain("there is an NVIDIA driver but no usable device: NVML lists none here")
    return devices if grant is None else grants.named(grant, devices)


def workers(backend: str, barred: Collection[str] = ()) -> int:
    """How many workers can compute at once on this node: one per device, one on NumPy.

    ``barred`` are UUIDs of devices that no worker takes. If none is left, the result is still 1:
    that worker reports why it has no device.
    """
    if backend == "numpy" or driver_cuda_version() is None:
        return 1
    return max(1, sum(device.uuid not in barred for device in candidates()))


def take(
    needed: int, limit: float | None = None, listed: Callable[[], list[Device]] | None = None,
    environ: MutableMapping[str, str] = os.environ, prefer: int | None = None,
    barred: Callable[[], Mapping[str, str]] = dict,
) -> Taken:  # fmt: skip
    """Give this process its device, and make CUDA see only that device.

    It is one of those granted to this job, or of the node, that no other task leases. The process
    keeps it to its end; later calls return it.

    Parameters
    ----------
    needed
        Bytes of device memory that the task is going to take.
    limit
        Seconds to wait after a lease last changed hands. Left out: an hour, or five minutes in a
        job of a cluster.
    listed
        How devices are found; left out, :func:`present`.
    prefer
        Position of the device to look at first, so that a worker that is started again comes back
        to its own; None: the freest first.
    barred
        Returns the devices that must not be taken because they failed: how each did, by UUID.

    Raises
    ------
    TryAgain
        If there is no device for this task, none became free in time, or all have failed.
    """
    if not _taken:
        grant = grants.read(environ)
        look = partial(candidates, listed, dict(environ))
        device = wait.lease_one(look, host.job(environ) is not None, needed, limit, prefer, barred)
        source = grant.source if grant else "lease"
        log.info("computing on %s, %s (%s)", device.uuid, device.name, grant or source)
        environ.update({grants.VISIBLE: device.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        _taken.append(Taken(device, source))
    return _taken[0]


def facts(cupy: Any, taken: Taken) -> dict[str, Any]:
    """Name, UUID and memory in bytes of the device of this process, for the receipt."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "name": properties["name"].decode(),
        "uuid": taken.device.uuid,
        "memory": properties["totalGlobalMem"],
        "source": taken.source,
    }


def versions(cupy: Any) -> dict[str, str]:
    """The versions of what a GPU needs besides cupy: the CUDA runtime, cuBLAS and the driver."""
    runtime, cublas = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.cublas
    return {
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "cublas": str(cublas.getVersion(cupy.cuda.device.get_cublas_handle())),
        "driver": driver_version(),
    }
