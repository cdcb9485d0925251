"""Which library computes: cupy on a device, or NumPy."""

import ctypes
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from shardwise import errors, host
from shardwise.devices import choose
from shardwise.errors import DeviceFailed, InputError

log = logging.getLogger(__name__)

# Environment variables that change how cuBLAS computes.
_SWITCH = re.compile(r"NVIDIA_TF32_OVERRIDE|CUBLAS(LT)?_(?!LOG).*")


def load_backend(
    requested: str, needed: int = 0, wait: float | None = None,
    prefer: int | None = None, barred: Callable[[], Mapping[str, str]] = dict,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """The array module to compute with, and facts about the device that it computes on.

    ``requested`` is ``auto``, ``cupy`` or ``numpy``; for the rest, see :func:`choose.take`.
    InputError if cupy is missing, or requested without a driver; TryAgain if there is no device for
    this task; DeviceFailed if the device that was taken does not work.
    """
    driver = None if requested == "numpy" else choose.driver_cuda_version()
    if driver is None:
        if requested == "cupy":
            raise InputError(
                "backend: cupy needs an NVIDIA driver, but libcuda.so.1 was not found here; "
                "run on a GPU node, or set backend: numpy"
            )
        if requested == "auto":
            log.warning("no NVIDIA driver here: computing with NumPy (backend: auto)")
        return np, {"name": "CPU"}
    if importlib.util.find_spec("cupy") is None:  # refused before any wait for a device
        major = driver // 1000
        raise InputError(
            f"there is an NVIDIA driver (CUDA {major}), but no cupy; install it with: "
            f"{host.install(major)}, or set backend: numpy"
        )
    device = choose.take(needed, wait, prefer, barred)
    clear_switches()
    # CUDA takes as long to start as cupy to be imported, and needs no Python.
    threading.Thread(target=_start_cuda, daemon=True).start()
    import cupy

    try:
        cupy.cuda.Device(0).use()
        cupy.zeros(1)
        return cupy, {"name": device.name, "uuid": device.uuid, "memory": device.memory}
    except errors.device_errors(cupy) as error:
        raise DeviceFailed(
            f"there is an NVIDIA driver but no usable device: {error} "
            f"({choose.VISIBLE}={os.environ.get(choose.VISIBLE)!r})"
        ) from error


def clear_switches() -> None:
    """Remove what a user's shell may have set to change how CUDA computes.

    These variables would silently turn float32 into tf32, or tf32 off, emulate products with
    narrower numbers, or choose other kernels.
    """
    for name in filter(_SWITCH.fullmatch, list(os.environ)):
        del os.environ[name]
    os.environ.update(CUPY_TF32="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")


def _start_cuda() -> None:
    """Open the context that cupy will use; what fails here fails there again, with its reason."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDeviceGet(ctypes.byref(device), 0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
