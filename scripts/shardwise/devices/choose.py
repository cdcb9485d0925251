"""A GPU: which driver there is, which devices, and which of them is this task's.

Standard library only: the Makefile asks this module before anything is installed.
"""

import ctypes
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise import host
from shardwise.devices import grants, leases
from shardwise.devices.grants import Grant
from shardwise.devices.nvml import Device, driver_version, present
from shardwise.errors import Quarantined, ShardwiseError, TryAgain, WrongProduct
from shardwise.units import human_bytes

log = logging.getLogger(__name__)

SCHEDULER_CLIENTS = ("sbatch", "qsub")
CUDA_MAJORS = (12, 13)

WAIT_SECONDS = 3600.0
"""How long a task waits while no lease changes hands.

The largest shards of usual plans take some minutes. Where nothing has moved for an hour, something
hangs.
"""

JOB_WAIT_SECONDS = 300.0
"""The same in a job of a cluster.

The run time that a job asks for leaves it some minutes beside its work. A task that waits longer
would be killed, and its log would not say why.
"""

POLL_SECONDS = 1.0
"""Pause between two looks at the devices, on average; drawn anew each time, so that tasks that
started together do not look together."""

_SIGN_SECONDS = 5.0
"""How long a device may be locked by somebody who does not say who he is: tasks do at once."""

_WORD_SECONDS = 60.0
"""Pause between two messages of a task that waits."""

_ENOUGH_SHARE = 0.5
"""Of a device smaller than the plan's figure, so much must be free: tasks halve their batches."""

_FREE_SHARE = 0.1
"""Of any device, so much must be free; with less, some other program computes on it.

Idle contexts and what the driver keeps take some hundred MiB of devices that have 16 GiB or more.
"""

HOLD_SECONDS = 60.0
"""How long a job keeps a device in quarantine that its scheduler has given it.

A scheduler gives a device that was just returned to the next job in the queue. While this job has
it, others get better ones; and tries are used up slowly.
"""

_BROKEN = {
    214: "an uncorrectable ECC error",
    220: "an uncorrectable NVLink error",
    226: "a hardware error that the GPU has contained",
}
"""The errors of CUDA that only a device causes, by the numbers of its runtime and its driver.

(The last one may also come from access to another GPU's memory, which no task has.) What a program
may cause too, such as an illegal address, a failed launch or a full stack, says nothing alone.
"""

_taken: list["Taken"] = []
"""The device of this process, once it has one: CUDA looks at the variables only once."""


@dataclass(frozen=True)
class Taken:
    """The device of this task.

    ``source`` is ``slurm`` or ``grid engine`` where a scheduler granted it (or several, of which
    this one was leased), else ``lease``. ``granted`` is what the scheduler or the user said, word
    for word.
    """

    device: Device
    source: str
    granted: str | None


def own() -> str | None:
    """The UUID of the device that this process has taken; None before."""
    return _taken[0].device.uuid if _taken else None


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


def fault(error: BaseException, uuid: str | None) -> str | None:
    """What is wrong with the device that a task has failed on; None where nothing says so.

    A device that is busy, or out of memory, has no fault.

    Parameters
    ----------
    error
        By which the task failed: of cupy, or one that was raised from it, or a `WrongProduct`.
    uuid
        Of the device of this process; None for the CPU.
    """
    said = _BROKEN.get(getattr(error.__cause__ or error, "status", 0))
    if said is None and uuid is not None:
        said = _symptom(uuid)
    if said is None and isinstance(error, WrongProduct):
        said = "a product failed its proof"
    return said


def _symptom(uuid: str) -> str | None:
    """What NVML says of a device, beside what it said when this process took it."""
    before = next((t.device.errors for t in _taken if t.device.uuid == uuid), None)
    try:
        found = next((device for device in present() if device.uuid == uuid), None)
    except ShardwiseError as error:
        return f"lost: {error}"
    if found is None:
        return "lost: NVML does not list it any more"
    new = (found.errors or 0) - (before or 0)
    if before is not None and new > 0:
        return f"uncorrectable ECC errors: {new} while this task ran"
    return None


def wait_seconds(job: str | None, holders: Iterable[leases.Holder | None] = ()) -> float:
    """How long a task waits for a device where nobody says so.

    Parameters
    ----------
    job
        The scheduler's job that the task is of, if there is one.
    holders
        Who has the devices. Where a task of the same job is among them, this is a run of many
        tasks within one job, whose own run time is not that of a task.
    """
    alone = job is not None and all(holder is None or holder.job != job for holder in holders)
    return JOB_WAIT_SECONDS if alone else WAIT_SECONDS


@dataclass(frozen=True)
class Choice:
    """Which device one of several workers looks at first, so that each gets another one.

    Attributes
    ----------
    prefer
        Place of that device among the candidates, counted around where it is past their end.
    without
        UUIDs of devices that are not taken at all.
    """

    prefer: int = 0
    without: Collection[str] = ()

    def order(self, candidates: Sequence[Device]) -> list[Device]:
        """The candidates that are left, the preferred one first."""
        left = sorted(candidates, key=lambda device: (device.index, device.uuid))
        first = self.prefer % max(1, len(left))
        return [d for d in left[first:] + left[:first] if d.uuid not in self.without]


def candidates(
    listed: Callable[[], list[Device]] | None = None, environ: Mapping[str, str] = os.environ
) -> list[Device]:
    """The devices among which a task here takes its own: those granted, or all of the node.

    Raises
    ------
    TryAgain
        Where a scheduler's or the user's word names no device of this node.
    """
    grant, devices = grants.read(environ), (listed or present)()
    return devices if grant is None else grants.named(grant, devices)


def workers(backend: str, without: Collection[str] = ()) -> int:
    """How many workers can compute at once on this node: one a device, one on NumPy.

    Parameters
    ----------
    without
        UUIDs of devices that no worker takes. One worker remains: it says why it has none.

    Raises
    ------
    TryAgain
        As :func:`candidates`.
    """
    return max(1, sum(device.uuid not in without for device in _of_workers(backend)))


def left_out(backend: str, barred: Mapping[str, str]) -> list[str]:
    """What is said of those devices in quarantine that workers of this node could take else.

    Raises
    ------
    TryAgain
        As :func:`candidates`.
    """
    found = _of_workers(backend) if barred else []
    return [barred[device.uuid] for device in found if device.uuid in barred]


def _of_workers(backend: str) -> list[Device]:
    """The devices of the workers of this node; none where NumPy computes."""
    return [] if backend == "numpy" or driver_cuda_version() is None else candidates()


def largest_memory(backend: str) -> int | None:
    """Bytes of the largest GPU that a worker of this node can take; None where there is none."""
    return max((device.memory for device in _of_workers(backend)), default=None)


def take(
    needed: int,
    limit: float | None = None,
    listed: Callable[[], list[Device]] | None = None,
    environ: MutableMapping[str, str] = os.environ,
    choice: Choice | None = None,
    barred: Callable[[], Mapping[str, str]] = dict,
) -> Taken:
    """Give this process its device, and make CUDA see that one only.

    The one that a scheduler has granted, once no other task of the same job has it; else, or where
    it has granted several, the first that is free. Either is leased. A process keeps its device to
    its end: later calls return the same.

    Parameters
    ----------
    needed
        Bytes of device memory that the task is going to take.
    limit
        Seconds to wait for a free device, counted from the last time that a lease changed hands;
        left out, :func:`wait_seconds`.
    listed
        How devices are found; left out, :func:`present`.
    choice
        For one of several workers that share devices; None takes the freest.
    barred
        Says which devices are in quarantine at the moment: by UUID, what is known of each.

    Raises
    ------
    TryAgain
        Where there is no device for this task, or none became free in time; of its class
        `Quarantined` where all that there are for it are in quarantine.
    """
    if _taken:
        return _taken[0]
    listed = listed or present
    grant, found = grants.read(environ), candidates(listed, environ)
    if not found:
        raise TryAgain("there is an NVIDIA driver but no usable device: NVML lists none here")
    source = grant.source if grant else "lease"
    job = host.job(environ)
    hold = 0.0 if source == "lease" else HOLD_SECONDS if limit is None else min(limit, HOLD_SECONDS)
    healthy = _healthy(found, barred, hold)
    order = choice.order if choice else _freest_first
    usable = order(healthy)
    if not usable:
        failed = ", ".join(choice.without) if choice else "all"
        raise TryAgain(f"no device is left but those that failed: {failed}")

    def leased(device: Device) -> bool:
        if device.uuid in (out := barred()):  # since this task waits
            _refuse_if_all(usable, out)
            return False
        if grant and source != "lease" and len(found) == 1:
            return _lease_granted(device, grant, job)
        return obstacle(device, needed) is None and leases.take(device.uuid, job)

    device = _wait_for_one(usable, leased, needed, limit, job, listed, order)
    environ.update({grants.VISIBLE: device.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    _taken.append(Taken(device, source, grant.value if grant else None))
    log.info("computing on %s, %s (%s)", device.uuid, device.name, grant or source)
    return _taken[0]


def _healthy(
    found: Sequence[Device], barred: Callable[[], Mapping[str, str]], hold: float
) -> list[Device]:
    """The devices that are not in quarantine; where all are, hold them for some seconds."""
    end = time.monotonic() + hold
    while True:
        out = barred()
        healthy = [device for device in found if device.uuid not in out]
        if healthy or time.monotonic() >= end:
            break
        time.sleep(min(POLL_SECONDS, hold))
    _refuse_if_all(found, out)
    for device in found:
        if device.uuid in out:
            log.info("left out, as in quarantine: %s", out[device.uuid])
    return healthy


def _refuse_if_all(found: Sequence[Device], out: Mapping[str, str]) -> None:
    """End where some devices, all that there are for this task, are in quarantine."""
    if all(device.uuid in out for device in found):
        said = "; ".join(out[device.uuid] for device in found)
        raise Quarantined(
            f"each device that this task may take is in quarantine for these results: {said}. "
            "Until then another device has to do its work: a next try may be given one"
        )


def _lease_granted(device: Device, grant: Grant, job: str | None) -> bool:
    """Lease the device that the scheduler gave to this job; False where a task of the job has it.

    The scheduler has decided, so no stranger makes the task wait.
    """
    end = time.monotonic() + _SIGN_SECONDS
    try:
        while not leases.take(device.uuid, job):
            holder = leases.holder(device.uuid)
            if holder is not None and holder.job == job:
                return False
            if holder is not None or time.monotonic() >= end:
                log.warning("%s is ours by %s, but %s", device.uuid, grant, _kept(device.uuid))
                break
            time.sleep(0.1 * POLL_SECONDS)
    except TryAgain as error:
        log.warning("%s", error)
    return True


def _freest_first(candidates: Sequence[Device]) -> list[Device]:
    return sorted(candidates, key=lambda d: (-d.free / d.memory, d.index, d.uuid))


def _wait_for_one(
    usable: Sequence[Device],
    leased: Callable[[Device], bool],
    needed: int,
    limit: float | None,
    job: str | None,
    listed: Callable[[], list[Device]],
    order: Callable[[Sequence[Device]], list[Device]],
) -> Device:
    """Wait until one of some devices could be leased to this process."""
    uuids = [device.uuid for device in usable]

    def here() -> list[Device]:
        return [device for device in listed() if device.uuid in uuids]

    holders, last_change, last_word = None, 0.0, float("-inf")
    while True:
        for device in order(usable):
            if leased(device):
                return device
        now, found = time.monotonic(), _holders(uuids)
        if found != holders:
            holders, last_change = found, now
        patience = wait_seconds(job, found.values()) if limit is None else limit
        if now - last_change >= patience:
            raise TryAgain(
                f"no device became free, and no lease changed hands for {patience:.0f} s: "
                f"{_situation(uuids, here(), needed)}; end what hangs (make doctor on this node "
                "shows it), and run again. If shards do take so long, start only as many at once "
                "as there are devices (snakemake --cores); by hand, --device-wait waits longer"
            )
        if now - last_word >= _WORD_SECONDS:
            log.warning("waiting for a free device: %s", _situation(uuids, here(), needed))
            last_word = now
        time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))
        # To list them starts NVML, the dearer the more GPUs: not while the same tasks hold all.
        found = _holders(uuids)
        usable = here() if found != holders or None in found.values() else []


def _holders(uuids: Sequence[str]) -> dict[str, leases.Holder | None]:
    return {uuid: leases.holder(uuid) for uuid in uuids}


def obstacle(device: Device, needed: int) -> str | None:
    """Why a task should not compute on a device, its lease left aside; None where it may."""
    if device.mode == "prohibited":
        return "its compute mode prohibits all computing"
    if device.mode.startswith("exclusive") and device.processes:
        return f"it is in {device.mode} mode, and {_others(device)} has it"
    enough = max(min(needed, _ENOUGH_SHARE * device.memory), _FREE_SHARE * device.memory)
    if device.free < enough:
        return f"{_others(device)} fills it: {human_bytes(round(enough))} should be free"
    return None


def _situation(uuids: Sequence[str], devices: Sequence[Device], needed: int) -> str:
    """What keeps a task from each of some devices, for a message; not all may be listed still."""
    listed = {device.uuid: device for device in devices}
    said = []
    for uuid in uuids:
        if (device := listed.get(uuid)) is None:
            said.append(f"{uuid} does not answer any more")
            continue
        free = f"{human_bytes(device.free)} of {human_bytes(device.memory)} free"
        said.append(f"{uuid} ({device.name}, {free}): {_kept(uuid, obstacle(device, needed))}")
    return "; ".join(said)


def _kept(uuid: str, otherwise: str | None = None) -> str:
    """Who leases a device; where nobody says so, what else keeps a task from it."""
    holder = leases.holder(uuid)
    if holder is None:
        return otherwise or "locked by an unknown program, or free again"
    return f"leased to {holder}"


def _others(device: Device) -> str:
    """The processes on a device, by number; other containers' and users' may be hidden."""
    pids = ", ".join(str(process.pid) for process in device.processes)
    return f"process {pids}" if pids else "a process that NVML does not show"


def facts(cupy: Any, taken: Taken) -> dict[str, Any]:
    """Name, UUID and memory in bytes of the device of this process, for the receipt."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "name": properties["name"].decode(),
        "uuid": taken.device.uuid,
        "memory": properties["totalGlobalMem"],
        "source": taken.source,
        "granted": taken.granted,
    }


def versions(cupy: Any) -> dict[str, str]:
    """The versions of what a GPU computes with beside cupy: CUDA's libraries, and the driver."""
    runtime, cublas = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.cublas
    return {
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "cublas": str(cublas.getVersion(cupy.cuda.device.get_cublas_handle())),
        "driver": driver_version(),
    }


def cuda_uuid(cupy: Any) -> str:
    """The UUID of the GPU that CUDA computes on now.

    The driver says it: what cupy passes on ends at the first byte of it that is zero.
    """
    driver, device, raw = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    failed = driver.cuDeviceGet(ctypes.byref(device), cupy.cuda.Device().id)
    if failed := failed or driver.cuDeviceGetUuid_v2(ctypes.byref(raw), device):
        raise RuntimeError(f"the NVIDIA driver does not say which GPU this is: error {failed}")
    digits = bytes(raw).hex()
    parts = (digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    return f"GPU-{'-'.join(parts)}"


def granted(environ: Mapping[str, str] = os.environ) -> str | None:
    """What a scheduler or the user says about this task's devices, word for word; None: nothing."""
    try:
        grant = grants.read(environ)
    except TryAgain:  # a Slurm job without a GPU
        return None
    return grant.value if grant else None
