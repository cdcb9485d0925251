"""How a task waits for a device: until one is free, and leased to it."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from shardwise import host
from shardwise.devices import leases
from shardwise.devices.grants import Grant
from shardwise.devices.nvml import Device
from shardwise.errors import TryAgain
from shardwise.units import human_bytes

log = logging.getLogger(__name__)

WAIT_SECONDS = 3600.0
"""How long a task waits while no lease changes hands: large shards take some minutes."""

JOB_WAIT_SECONDS = 300.0
"""The same in a job of a cluster, which asks for some minutes on top of its work, and is then
killed without a word in its log."""

POLL_SECONDS = 1.0
"""Average pause between two looks at the devices; drawn at random each time, so that tasks that
started together do not look together."""

HOLD_SECONDS = 60.0
"""How long a job keeps a device that has failed in this run, where it was given no other.

A scheduler gives a device that was just returned to the next job in the queue. While this job has
it, others get better ones; and tries are used up slowly.
"""

_MESSAGE_SECONDS = 60.0
_SIGN_SECONDS = 0.1  # until then a lease may still name the one who had it before

_ENOUGH_SHARE = 0.5
"""Of a device smaller than the plan's figure, so much must be free: tasks halve their batches."""

_FREE_SHARE = 0.1
"""Of any device, so much must be free: idle contexts and the driver take some hundred MiB."""


def wait_seconds(job: str | None, holders: Iterable[leases.Holder | None] = ()) -> float:
    """How long a task of a scheduler's job, if any, waits for a device where nobody says so.

    Where a task of the same job is among the holders of the devices, this is a run of many tasks
    within one job, whose own run time is not that of a task.
    """
    alone = job is not None and all(holder is None or holder.job != job for holder in holders)
    return JOB_WAIT_SECONDS if alone else WAIT_SECONDS


def leave_out(
    devices: Sequence[Device], barred: Mapping[str, str], hold: float = 0.0
) -> list[Device]:
    """The devices that have not failed in this run.

    Raises TryAgain where all have, after some seconds for which this task holds what it was given.
    """
    usable = [device for device in devices if device.uuid not in barred]
    if not usable:
        time.sleep(hold)
        reasons = "; ".join(barred[device.uuid] for device in devices)
        raise TryAgain(
            "no device is left for this task, as each that it may take has failed in this run: "
            f"{reasons}. Run again on another node, or ask for other devices; a new run may take "
            "these again"
        )
    return usable


def lease_granted(device: Device, grant: Grant, job: str | None) -> bool:
    """Lease the device that the scheduler gave to this job; False where it has to wait.

    That is for a task of the same job, or for somebody who names no job. The scheduler has decided
    about other jobs: it may share a device, and leases that cannot be kept are no reason to stop.
    """
    try:
        if leases.take(device.uuid, job):
            return True
        holder = leases.holder(device.uuid)
        if holder and holder.job not in (None, job):
            time.sleep(_SIGN_SECONDS)
            holder = leases.holder(device.uuid)
    except TryAgain as error:
        log.warning("%s", error)
        return True
    if holder is None or holder.job in (None, job):
        return False
    log.warning("%s is granted by %s, but leased to %s", device.uuid, grant, holder.words)
    return True


def for_free_device(
    usable: Sequence[Device], lease: Callable[[Device], bool], needed: int, limit: float | None,
    job: str | None, listed: Callable[[], list[Device]],
    order: Callable[[Sequence[Device]], list[Device]],
) -> Device:  # fmt: skip
    """Wait until one of some devices could be leased to this process; arguments as in `take`.

    Raises TryAgain if no lease changed hands for too long; it says what keeps the task from each
    device.
    """
    uuids = [device.uuid for device in usable]

    def look() -> list[Device]:
        return [device for device in listed() if device.uuid in uuids]

    holders, last_change, last_message = None, 0.0, float("-inf")
    while True:
        for device in order(usable):
            if lease(device):
                return device
        now, current = time.monotonic(), _holders(uuids)
        if current != holders:
            holders, last_change = current, now
        patience = wait_seconds(job, current.values()) if limit is None else limit
        if now - last_change >= patience:
            raise _out_of_patience(patience, _situation(uuids, look(), needed))
        if now - last_message >= _MESSAGE_SECONDS:
            log.warning("waiting for a free device: %s", _situation(uuids, look(), needed))
            last_message = now
        time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))
        # To list them starts NVML, the dearer the more GPUs: not while the same tasks hold all.
        current = _holders(uuids)
        usable = look() if current != holders or None in current.values() else []


def _out_of_patience(patience: float, situation: str) -> TryAgain:
    return TryAgain(
        f"no device became free, and no lease changed hands for {patience:.0f} s: {situation}; "
        f"end what hangs ({host.command('doctor')} on this node shows it), and run again. If "
        "shards do take so long, start only as many at once as there are devices (snakemake "
        "--cores); by hand, --device-wait waits longer"
    )


def _holders(uuids: Sequence[str]) -> dict[str, leases.Holder | None]:
    return {uuid: leases.holder(uuid) for uuid in uuids}


def obstacle(device: Device, needed: int) -> str | None:
    """Why a task should not compute on a device, its lease left aside; None if it may."""
    if device.mode == "prohibited":
        return "its compute mode prohibits all computing"
    if device.mode.startswith("exclusive") and device.processes:
        return f"it is in {device.mode} mode, and {_processes(device)} has it"
    enough = max(min(needed, _ENOUGH_SHARE * device.memory), _FREE_SHARE * device.memory)
    if device.free < enough:
        return f"{_processes(device)} fills it: {human_bytes(round(enough))} should be free"
    return None


def _situation(uuids: Sequence[str], devices: Sequence[Device], needed: int) -> str:
    """What keeps a task from each of some devices, for a message; some may no longer be listed."""
    listed = {device.uuid: device for device in devices}
    parts = []
    for uuid in uuids:
        if (device := listed.get(uuid)) is None:
            parts.append(f"{uuid} does not answer any more")
            continue
        free = f"{human_bytes(device.free)} of {human_bytes(device.memory)} free"
        parts.append(f"{uuid} ({device.name}, {free}): {_holder(uuid, obstacle(device, needed))}")
    return "; ".join(parts)


def _holder(uuid: str, otherwise: str | None = None) -> str:
    """Who leases a device; where nobody says so, what else keeps a task from it."""
    holder = leases.holder(uuid)
    if holder is None:
        return otherwise or "locked by an unknown program, or free again"
    return f"leased to {holder.words}"


def _processes(device: Device) -> str:
    """The processes on a device, by number; other containers' and users' may be hidden."""
    pids = ", ".join(str(process.pid) for process in device.processes)
    return f"process {pids}" if pids else "a process that NVML does not show"
