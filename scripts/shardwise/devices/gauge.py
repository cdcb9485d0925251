"""Samples of one device: clocks, power, memory, throttling."""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from shardwise.devices.nvml import Process, _ecc, _errors, _others, unlisted

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """What a device does at one moment, as docs/telemetry.md has it; None if NVML does not tell.

    `utilisation` is a share of 1; errors and energy count since the driver was loaded; `processes`
    compute here, and `memory_unlisted_bytes` belong to none listed.
    """

    utilisation: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    clock_sm_hertz: int | None = None
    clock_memory_hertz: int | None = None
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

_MHZ = 10**6


def _used(nvml: Any, handle: Any) -> tuple[int, int]:
    """Bytes in use, and all; as nvidia-smi counts them where the driver is not too old for that."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    if not memory.total:  # it shares the memory of the CPU
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return memory.used, memory.total


def _temperature(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError:  # a driver before 555
        return int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


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
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)


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

_OF_WHOLE_GPUS = ("power_watts", "energy_joules")
"""What an instance has no own number of: that of its GPU is the work of others, too."""


class Gauge:
    """One device of this process, to be asked again and again what it does.

    NVML stays open, as it takes 70 ms to start. A question that was refused once is not asked
    again: kinds of GPU and drivers differ, and none of them learns. No answer is ever an error, and
    a driver that hangs holds up one thread alone. An instance (``MIG-…``) answers fewer questions.
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

    def sample(self) -> Sample:
        """What the device does now, or did a moment ago where somebody has just asked."""
        if not self._asking.acquire(blocking=False):  # who asked before has no answer yet
            return Sample()
        try:
            self.open()
            if monotonic() - self._answered >= _ANEW_SECONDS:
                self._last = self._look()
                self._answered = monotonic()
            return replace(self._last, energy_joules=self._energy(self._last.power_watts))
        finally:
            self._asking.release()

    def _look(self) -> Sample:
        answers = {name: self._ask(name, question) for name, question in _QUESTIONS.items()}
        used, total = answers.pop("memory") or (None, None)
        processes, unlisted = self._ask("holders", _holders) or (None, None)
        return Sample(memory_bytes=used, memory_total_bytes=total, processes=processes,
                      memory_unlisted_bytes=unlisted, **answers)  # fmt: skip

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
