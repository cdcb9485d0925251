"""A GPU: which driver there is, and which device a task was given.

Standard library only: the Makefile asks this module before anything is installed.
"""

import ctypes
import os
import shutil
from typing import Any

SCHEDULER_CLIENTS = ("sbatch", "qsub")
CUDA_MAJORS = (12, 13)


def driver_cuda_version() -> int | None:
    """Highest CUDA version of the NVIDIA driver, such as 13000 for 13.0; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value


def cuda_extra() -> str:
    """The CUDA version to install cupy for: ``12``, ``13`` or ``none``.

    That of the driver found here. A login node has no driver, only a scheduler's client: there
    the older version is taken, which newer drivers run as well.
    """
    version = driver_cuda_version()
    if version is not None:
        major = version // 1000
        fitting = [m for m in CUDA_MAJORS if m <= major]
        return str(fitting[-1]) if fitting else "none"
    login_node = any(shutil.which(client) for client in SCHEDULER_CLIENTS)
    return str(CUDA_MAJORS[0]) if login_node else "none"


def device_errors(xp: Any) -> tuple[type[BaseException], ...]:
    """The exceptions by which cupy tells that a device is lost, busy or full; none of NumPy."""
    if not hasattr(xp, "cuda"):
        return ()
    return (
        xp.cuda.memory.OutOfMemoryError,
        xp.cuda.runtime.CUDARuntimeError,
        xp.cuda.driver.CUDADriverError,
        xp.cuda.cublas.CUBLASError,
    )


def facts(cupy: Any) -> dict[str, Any]:
    """Name, UUID and memory in bytes of the current device, for the receipt."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    raw = bytes(properties["uuid"]).hex()
    uuid = "-".join(raw[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    return {
        "name": properties["name"].decode(),
        "uuid": f"GPU-{uuid}",
        "memory": properties["totalGlobalMem"],
        "granted": granted(),
    }


def granted() -> str | None:
    """The devices that the scheduler gave to this job, as it named them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")
