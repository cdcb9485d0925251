"""What NVML says about the GPUs of a node, through NVIDIA's own binding, imported late."""

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shardwise.errors import TryAgain

_warn_once = functools.cache(logging.getLogger(__name__).warning)


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


def present() -> list[Device]:
    """All devices of this node that may compute, in the order of their PCI addresses.

    Instances replace a GPU that is cut by MIG. A GPU that does not answer is left out. Raises
    TryAgain if the driver cannot be asked.
    """
    import pynvml as nvml

    devices: list[Device] = []
    index = 0
    try:
        nvml.nvmlInit()
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                devices += _devices(nvml, nvml.nvmlDeviceGetHandleByIndex(number), index)
            except nvml.NVMLError_NoPermission:
                continue  # not given to this container or job: CUDA does not count it either
            except nvml.NVMLError as error:
                said = "GPU %d does not answer (%s) and is left out; it may need a reset"
                _warn_once(said, index, str(error))
            index += 1
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise TryAgain(
            f"there is an NVIDIA driver but no usable device: NVML says {error}; if nvidia-smi "
            "fails too, reboot the node (the driver may have been upgraded), or give the container "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ) from error
    return devices


def _devices(nvml: Any, gpu: Any, index: int) -> Iterator[Device]:
    """A GPU, or its instances if MIG has cut it."""
    handles, places = [], 0
    with suppress(nvml.NVMLError):  # GPUs that cannot be cut do not know
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)  # 0 if MIG is off
    for number in range(places):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))
    for handle in handles if places else [gpu]:
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            total, free = memory.total, memory.free
        except nvml.NVMLError_NotSupported:  # it shares the memory of the CPU
            total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        yield Device(uuid, name, index, total, free)
