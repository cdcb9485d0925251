"""What NVML says about the GPUs of a node, through NVIDIA's own binding.

The binding is imported late: on a machine without a GPU nothing here is needed.
"""

import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from shardwise.errors import InputError, TryAgain

log = logging.getLogger(__name__)

MEMINFO = Path("/proc/meminfo")
MODULE = Path("/sys/module/nvidia/version")

_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@dataclass(frozen=True)
class Process:
    """A process that computes on a device, with the bytes it takes there, where NVML tells."""

    pid: int
    memory: int | None


@dataclass(frozen=True)
class Device:
    """A GPU, or an instance of one that is cut by MIG, as NVML sees it now.

    ``index`` counts GPUs in the order of their PCI addresses, as nvidia-smi does; an instance has
    that of its GPU. ``memory`` and ``free`` are bytes, of the whole machine where GPU and CPU share
    one memory; ``mode`` is the compute mode. ``reserved`` are bytes that the driver keeps for
    itself, where it tells; ``others`` are processes that draw, or compute by MPS. ``errors`` counts
    memory errors of the GPU that could not be corrected, since its driver was loaded; an instance
    has those of its GPU.
    """

    uuid: str
    name: str
    index: int
    memory: int
    free: int
    mode: str = "default"
    processes: tuple[Process, ...] = ()
    reserved: int | None = None
    others: tuple[Process, ...] = ()
    errors: int | None = None


def present() -> list[Device]:
    """All devices of this node that may compute, in the order of their PCI addresses.

    A GPU that is cut by MIG is not among them, its instances are.

    Raises
    ------
    TryAgain
        Where the driver cannot be asked.
    InputError
        Where its Python binding is missing.
    """
    with _started() as nvml:
        return _present(nvml)


def driver_version() -> str:
    """The driver's version, such as ``570.86.15``; `unknown` where nothing says it.

    The kernel's module says it at once; to start NVML takes a task 70 ms.
    """
    with suppress(OSError):
        return MODULE.read_text().strip()
    try:
        with _started() as nvml:
            return nvml.nvmlSystemGetDriverVersion()
    except (TryAgain, InputError):
        return "unknown"


def driver_and_devices() -> tuple[str, list[Device]]:
    """The driver's version, such as ``570.86.15``, and all devices as :func:`present` has them."""
    with _started() as nvml:
        return nvml.nvmlSystemGetDriverVersion(), _present(nvml)


def _present(nvml: Any) -> list[Device]:
    found: list[Device] = []
    index = 0
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            found += _devices_of(nvml, handle, index)
        except nvml.NVMLError_NoPermission:
            continue  # not given to this container or job: CUDA does not count it either
        except nvml.NVMLError as error:
            _leave_out(index, str(error))
        index += 1
    return found


@contextmanager
def _started() -> Iterator[Any]:
    """The module of NVML, ready for questions; its errors become ours."""
    try:
        import pynvml
    except ImportError as error:
        raise InputError(f"nvidia-ml-py cannot be imported ({error}); run: make install") from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise TryAgain(
            f"there is an NVIDIA driver but no usable device: NVML says {error}; {_cure(error)}"
        ) from error


def _cure(error: Exception) -> str:
    """What to do about an error of NVML."""
    cures = {
        "NVMLError_LibraryNotFound": "libnvidia-ml.so.1 is missing: install the driver's library "
        "of management, or give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "NVMLError_LibRmVersionMismatch": "the driver was upgraded while its old module is loaded: "
        "reboot this node, or load the new module",
        "NVMLError_DriverNotLoaded": "the driver's module is not loaded: run on a GPU node, or set "
        "backend: numpy",
    }
    return cures.get(type(error).__name__, "try again, or ask the administrator to look at it")


@functools.cache
def _leave_out(index: int, error: str) -> None:
    """Say once that a device does not answer: the others may."""
    log.warning("GPU %d does not answer (%s) and is left out; it may need a reset", index, error)


def _devices_of(nvml: Any, handle: Any, index: int) -> list[Device]:
    """A GPU, or its instances where it is cut by MIG."""
    mode = _MODES.get(_answer(nvml, nvml.nvmlDeviceGetComputeMode, handle, 0), "unknown")
    errors = _answer(nvml, lambda gpu: _errors(nvml, gpu), handle, None)
    cut, _ = _answer(nvml, nvml.nvmlDeviceGetMigMode, handle, (nvml.NVML_DEVICE_MIG_DISABLE, None))
    if cut != nvml.NVML_DEVICE_MIG_ENABLE:
        return [_device(nvml, handle, index, mode, errors)]
    found = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            found.append(_device(nvml, instance, index, mode, errors))
    return found


def _errors(nvml: Any, handle: Any) -> int:
    return _ecc(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)


def _ecc(nvml: Any, handle: Any, kind: int) -> int:
    return nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)


def _device(nvml: Any, handle: Any, index: int, mode: str, errors: int | None) -> Device:
    memory, free = _memory(nvml, handle)
    return Device(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        index=index,
        memory=memory,
        free=free,
        mode=mode,
        processes=_processes(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle),
        reserved=_answer(nvml, lambda h: _reserved(nvml, h), handle, None),
        others=_others(nvml, handle),
        errors=errors,
    )


def _processes(nvml: Any, question: Callable[[Any], Any], handle: Any) -> tuple[Process, ...]:
    found = _answer(nvml, question, handle, ())
    return tuple(Process(process.pid, process.usedGpuMemory) for process in found)


def unlisted(used: int, listed: Iterable[Process]) -> int | None:
    """Bytes in use on a device that no process has of those that are listed.

    Left by one that died, or of another container. None where a process does not tell its own.
    """
    taken = {process.pid: process.memory for process in listed}
    return None if None in taken.values() else used - sum(taken.values())


def _others(nvml: Any, handle: Any) -> tuple[Process, ...]:
    """Those that draw, or compute by MPS."""
    return (
        *_processes(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
        *_processes(nvml, nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
    )


def _reserved(nvml: Any, handle: Any) -> int | None:
    found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return found.reserved if found.total else None


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Bytes of a device, and how many of them are free."""
    with suppress(nvml.NVMLError_NotSupported):
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        if found.total:
            return found.total, found.free
    # A GPU that shares the memory of the CPU has none of its own to tell of.
    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    kib = {name: int(count) for name, count, *_ in lines}
    return kib["MemTotal:"] * 1024, kib["MemAvailable:"] * 1024


def _answer(nvml: Any, question: Callable[[Any], Any], handle: Any, otherwise: Any) -> Any:
    """What NVML says of a device, where it says anything: kinds of GPU and drivers differ."""
    try:
        return question(handle)
    except nvml.NVMLError:
        return otherwise


@dataclass(frozen=True)
class Sample:
    """What a device does at one moment; None where NVML does not tell.

    Attributes
    ----------
    utilisation
        Share of the last moments, up to a second, in which a kernel ran: 0 to 1.
    memory_bytes, memory_total_bytes
        In use by anyone, without what the driver keeps for itself; and all there is.
    power_watts, temperature_celsius, clock_sm_hertz, clock_memory_hertz
        Of the whole GPU; power is an average over a second on most.
    pcie_received_bytes_per_second, pcie_sent_bytes_per_second
        What the device took from the host and gave to it, in 20 ms.
    throttled
        What holds the clocks back, by names of :data:`THROTTLES`.
    ecc_corrected, ecc_uncorrected
        Memory errors since the driver was loaded.
    energy_joules
        Since the driver was loaded.
    processes
        How many compute on the device.
    memory_unlisted_bytes
        In use, but of no process that is listed.
    """

    utilisation: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    clock_sm_hertz: int | None = None
    clock_memory_hertz: int | None = None
    pcie_received_bytes_per_second: int | None = None
    pcie_sent_bytes_per_second: int | None = None
    throttled: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    energy_joules: float | None = None
    processes: int | None = None
    memory_unlisted_bytes: int | None = None


THROTTLES = {
    0x2: "applications_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Why clocks are lower than they could be, by NVML's bits; idleness, its first one, is no reason.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
"""

_MHZ, _KB = 10**6, 1000


def _used(nvml: Any, handle: Any) -> tuple[int, int]:
    """Bytes in use, and all; as nvidia-smi counts them where the driver is not too old for that."""
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
    if not found.total:  # it shares the memory of the CPU
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return found.used, found.total


def _temperature(nvml: Any, handle: Any) -> int:
    try:
        return nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
    except nvml.NVMLError:  # a driver before 555
        return nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)


def _throttles(nvml: Any, handle: Any) -> tuple[str, ...]:
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError:  # a driver before 535
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return tuple(name for bit, name in THROTTLES.items() if bits & bit)


_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "utilisation": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "memory": _used,
    "power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "temperature_celsius": _temperature,
    "clock_sm_hertz": lambda nvml, gpu: _MHZ * nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "clock_memory_hertz": lambda nvml, gpu: (
        _MHZ * nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)
    ),
    "throttled": _throttles,
    "ecc_corrected": lambda nvml, gpu: _ecc(nvml, gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "ecc_uncorrected": _errors,
}


def _counted_joules(nvml: Any, handle: Any) -> float:
    return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


_PCIE: dict[str, Callable[[Any, Any], Any]] = {
    "pcie_received_bytes_per_second": lambda nvml, gpu: (
        _KB * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)
    ),
    "pcie_sent_bytes_per_second": lambda nvml, gpu: (
        _KB * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)
    ),
}


def _holders(nvml: Any, handle: Any) -> tuple[int, int | None]:
    """How many processes compute, and the bytes that none has of all that are listed.

    The latter is unknown where not even this process is listed: containers hide them.
    """
    computing = [
        Process(process.pid, process.usedGpuMemory)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ]
    used, _ = _used(nvml, handle)
    listed = (*computing, *_others(nvml, handle))
    return len(computing), unlisted(used, listed) if computing else None


_ANEW_SECONDS, _COUNTER_SECONDS = 0.25, 0.9
"""So long an answer serves, and that of the counter of energy: shards that follow each other fast
do not each wait for the driver, which takes 0.3 ms, and for the counter 3 to 7."""

_OF_WHOLE_GPUS = ("power_watts", "energy_joules", *_PCIE)
"""What an instance has no own number of: that of its GPU is the work of others, too."""


class Gauge:
    """One device of this process, to be asked again and again what it does.

    NVML stays open, as it takes 70 ms to start. A question that was refused once is not asked
    again: kinds of GPU and drivers differ, and none of them learns. No answer is ever an error, and
    a driver that hangs holds up one thread alone.

    Parameters
    ----------
    uuid
        ``GPU-…``, or ``MIG-…`` of an instance, which answers fewer questions.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid, self._lock, self._asking = uuid, threading.Lock(), threading.Lock()
        self._nvml = self._handle = None
        self._opened = False
        self._answered, self._last = -math.inf, Sample()
        self._counter: tuple[float, float] | None = None  # when it was asked, joules
        self._joules = 0.0
        self._refused: set[str] = set(_OF_WHOLE_GPUS) if uuid.startswith("MIG-") else set()

    def open(self) -> None:
        """Start NVML, once; who does that beforehand, in a thread, saves the first sample 70 ms."""
        with self._lock:
            if self._opened:
                return
            self._opened = True
            try:
                import pynvml  # late: no machine without a GPU needs it

                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
                self._nvml = pynvml
            except Exception as error:
                log.info("no telemetry of %s: %s", self._uuid, error)

    def sample(self, thorough: bool = True) -> Sample:
        """What the device does now, or did a moment ago where somebody has just asked.

        Parameters
        ----------
        thorough
            Whether to measure the traffic of the link, too, which takes 40 ms, and to ask who holds
            the device.
        """
        if not self._asking.acquire(blocking=False):  # who asked before has no answer yet
            return Sample()
        try:
            self.open()
            if thorough or monotonic() - self._answered >= _ANEW_SECONDS:
                self._last = self._look()
                self._answered = monotonic()
            more = self._more() if thorough else {}
            return replace(self._last, energy_joules=self._energy(self._last.power_watts), **more)
        finally:
            self._asking.release()

    def _look(self) -> Sample:
        found = {name: self._ask(name, question) for name, question in _QUESTIONS.items()}
        used, total = found.pop("memory") or (None, None)
        return Sample(memory_bytes=used, memory_total_bytes=total, **found)

    def _more(self) -> dict[str, Any]:
        links = {name: self._ask(name, question) for name, question in _PCIE.items()}
        processes, unlisted = self._ask("holders", _holders) or (None, None)
        return {**links, "processes": processes, "memory_unlisted_bytes": unlisted}

    def _energy(self, watts: float | None) -> float | None:
        """Joules that the device has taken so far: by its counter, and since then by its power.

        They never fall, as the counter does not.
        """
        now = monotonic()
        if watts is None or self._counter is None or now - self._counter[0] >= _COUNTER_SECONDS:
            counted = self._ask("energy_joules", _counted_joules)
            self._counter = None if counted is None else (now, counted)
        if self._counter is None:
            return None
        at, counted = self._counter
        self._joules = max(self._joules, counted + (watts or 0.0) * (now - at))
        return self._joules

    def _ask(self, name: str, question: Callable[[Any, Any], Any]) -> Any:
        if self._nvml is None or name in self._refused:
            return None
        try:
            return question(self._nvml, self._handle)
        except Exception:  # refused by the driver, or unknown to its binding
            self._refused.add(name)
            return None
