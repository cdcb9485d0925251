"""What NVML says about the GPUs of a node, through NVIDIA's own binding.

The binding is imported late: on a machine without a GPU nothing here is needed.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import host
from shardwise.errors import InputError, TryAgain

log = logging.getLogger(__name__)

MEMINFO = Path("/proc/meminfo")
MODULE = Path("/sys/module/nvidia/version")

_CURES = {
    "NVMLError_LibraryNotFound": "libnvidia-ml.so.1 is missing: install the driver's management "
    "library, or give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVMLError_LibRmVersionMismatch": "the driver was upgraded while its old module is loaded: "
    "reboot this node, or load the new module",
    "NVMLError_DriverNotLoaded": "the driver's module is not loaded: run on a GPU node, or set "
    "backend: numpy",
}
"""What to do about an error of NVML."""

_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@dataclass(frozen=True)
class Process:
    """A process that computes on a device, and its bytes there; None if NVML hides them."""

    pid: int
    memory: int | None


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG instance of one, as NVML sees it now.

    ``index`` counts GPUs in the order of their PCI addresses, as nvidia-smi does; a MIG instance
    has the index of its GPU. ``memory`` and ``free`` are bytes; if GPU and CPU share one memory,
    they are those of the whole machine. ``mode`` is the compute mode.
    """

    uuid: str
    name: str
    index: int
    memory: int
    free: int
    mode: str = "default"
    processes: tuple[Process, ...] = ()


def present() -> list[Device]:
    """All devices of this node that may compute: see `driver_and_devices`."""
    return driver_and_devices()[1]


def driver_version() -> str:
    """The driver's version, such as ``570.86.15``; `unknown` if its module does not say it.

    It is read from a file of the kernel module, as starting NVML would take a task 70 ms.
    """
    with suppress(OSError):
        return MODULE.read_text().strip()
    return "unknown"


def driver_and_devices() -> tuple[str, list[Device]]:
    """The driver's version, and all devices that may compute, in the order of their PCI addresses.

    A GPU that is cut by MIG is replaced by its instances. Raises TryAgain if the driver cannot be
    asked; InputError if its Python binding is missing.
    """
    devices: list[Device] = []
    index = 0
    with _started() as nvml:
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                devices += _devices_of(nvml, handle, index)
            except nvml.NVMLError_NoPermission:
                continue  # not given to this container or job: CUDA does not count it either
            except nvml.NVMLError as error:
                _leave_out(index, str(error))
            index += 1
        return str(nvml.nvmlSystemGetDriverVersion()), devices


@contextmanager
def _started() -> Iterator[Any]:
    """The module of NVML, initialized; its errors are raised as ours."""
    try:
        import pynvml
    except ImportError as error:
        raise InputError(
            f"nvidia-ml-py cannot be imported ({error}); run: {host.install()}"
        ) from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        cure = _CURES.get(type(error).__name__, "try again, or ask the administrator to look at it")
        raise TryAgain(
            f"there is an NVIDIA driver but no usable device: NVML says {error}; {cure}"
        ) from error


@functools.cache
def _leave_out(index: int, error: str) -> None:
    """Warn once that a device does not answer; the others can still be used."""
    log.warning("GPU %d does not answer (%s) and is left out; it may need a reset", index, error)


def _devices_of(nvml: Any, handle: Any, index: int) -> list[Device]:
    """A GPU alone, or its instances if it is cut by MIG."""
    mode = _MODES.get(_answer(nvml, nvml.nvmlDeviceGetComputeMode, handle, 0), "unknown")
    cut, _ = _answer(nvml, nvml.nvmlDeviceGetMigMode, handle, (nvml.NVML_DEVICE_MIG_DISABLE, None))
    if cut != nvml.NVML_DEVICE_MIG_ENABLE:
        return [_device(nvml, handle, index, mode)]
    instances = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            instances.append(_device(nvml, instance, index, mode))
    return instances


def _device(nvml: Any, handle: Any, index: int, mode: str) -> Device:
    memory = None
    with suppress(nvml.NVMLError_NotSupported):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    if memory and memory.total:
        total, free = memory.total, memory.free
    else:  # it shares the memory of the CPU: take the machine's
        lines = (line.split() for line in MEMINFO.read_text().splitlines())
        kib = {name: int(count) for name, count, *_ in lines}
        total, free = kib["MemTotal:"] * 1024, kib["MemAvailable:"] * 1024
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    running = _answer(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle, ())
    processes = tuple(Process(process.pid, process.usedGpuMemory) for process in running)
    return Device(uuid, name, index, total, free, mode, processes)


def _answer(nvml: Any, question: Callable[[Any], Any], handle: Any, otherwise: Any) -> Any:
    """NVML's answer about a device, or ``otherwise``: not all GPUs and drivers have an answer."""
    try:
        return question(handle)
    except nvml.NVMLError:
        return otherwise
