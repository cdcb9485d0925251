"""What NVML says about the GPUs of a node, through NVIDIA's own binding, imported late."""

import functools
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import TryAgain

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG instance of one, as NVML sees it now; ``memory`` and ``free`` are bytes.

    ``index`` counts GPUs in the order of their PCI addresses, as nvidia-smi does; a MIG instance
    has the index of its GPU. ``processes`` that compute there are pairs of a PID and the bytes that
    it holds, None if NVML hides them.
    """

    uuid: str
    name: str
    index: int
    memory: int
    free: int
    processes: tuple[tuple[int, int | None], ...] = ()


def driver_version() -> str:
    """The driver's version, such as ``570.86.15``, without NVML, which takes 70 ms to start."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
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
                devices += list(_devices(nvml, handle, index))
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


def _devices(nvml: Any, gpu: Any, index: int) -> Iterator[Device]:
    """A GPU alone, or its instances if it is cut by MIG."""
    cut = False
    with suppress(nvml.NVMLError):  # GPUs that cannot be cut do not know
        cut = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    handles = [] if cut else [gpu]
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if cut else 0):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))
    for handle in handles:
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            total, free = memory.total, memory.free
        except nvml.NVMLError_NotSupported:  # it shares the memory of the CPU
            import psutil  # type: ignore[import-untyped]  # the Makefile imports this module without

            machine = psutil.virtual_memory()
            total, free = machine.total, machine.available
        running = []
        with suppress(nvml.NVMLError):  # some drivers hide them
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        found = tuple((process.pid, process.usedGpuMemory) for process in running)
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        yield Device(uuid, name, index, total, free, found)
