"""What NVML says about the GPUs of a node, through NVIDIA's own binding, imported late."""

import functools
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.errors import TryAgain

log = logging.getLogger(__name__)

MODULE = Path("/sys/module/nvidia/version")


class Process(NamedTuple):
    """A process that computes on a device, and its bytes there; None if NVML hides them."""

    pid: int
    memory: int | None


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG instance of one, as NVML sees it now; ``memory`` and ``free`` are bytes.

    ``index`` counts GPUs in the order of their PCI addresses, as nvidia-smi does; a MIG instance
    has the index of its GPU.
    """

    uuid: str
    name: str
    index: int
    memory: int
    free: int
    processes: tuple[Process, ...] = ()


def driver_version() -> str:
    """The driver's version, such as ``570.86.15``, without NVML, which takes 70 ms to start."""
    with suppress(OSError):
        return MODULE.read_text().strip()
    return "unknown"


def present() -> list[Device]:
    """All devices of this node that may compute, in the order of their PCI addresses.

    Instances replace a GPU that is cut by MIG. Raises TryAgain if the driver cannot be asked.
    """
    import pynvml as nvml

    devices: list[Device] = []
    index = 0
    try:
        nvml.nvmlInit()
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                devices += [_device(nvml, own, index) for own in _parts(nvml, handle)]
            except nvml.NVMLError_NoPermission:
                continue  # not given to this container or job: CUDA does not count it either
            except nvml.NVMLError as error:
                _leave_out(index, str(error))
            index += 1
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise TryAgain(
            f"there is an NVIDIA driver but no usable device: NVML says {error}; if nvidia-smi "
            "fails too, reboot the node (the driver may have been upgraded), or give the container "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ) from error
    return devices


@functools.cache
def _leave_out(index: int, error: str) -> None:
    """Warn once that a device does not answer; the others can still be used."""
    log.warning("GPU %d does not answer (%s) and is left out; it may need a reset", index, error)


def _parts(nvml: Any, handle: Any) -> Iterator[Any]:
    """A GPU alone, or its instances if it is cut by MIG."""
    mig = nvml.NVML_DEVICE_MIG_DISABLE
    with suppress(nvml.NVMLError):  # GPUs that cannot be cut do not know
        mig, _ = nvml.nvmlDeviceGetMigMode(handle)
    if mig != nvml.NVML_DEVICE_MIG_ENABLE:
        yield handle
        return
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _device(nvml: Any, handle: Any, index: int) -> Device:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = memory.total, memory.free
    except nvml.NVMLError_NotSupported:  # it shares the memory of the CPU
        import psutil  # type: ignore[import-untyped]  # the Makefile imports this module without

        machine = psutil.virtual_memory()
        total, free = machine.total, machine.available
    processes = []
    with suppress(nvml.NVMLError):  # some drivers hide them
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    found = tuple(Process(process.pid, process.usedGpuMemory) for process in processes)
    return Device(uuid, name, index, total, free, found)
