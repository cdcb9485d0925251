"""How a task waits for a device: until one is free, and leased to it."""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

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
"""The same in a job of a cluster: it requests only some minutes beyond its work, and the scheduler
kills it after them without a word in its log."""

POLL_SECONDS = 1.0
"""Average pause between two looks at the devices; drawn at random each time, so that tasks that
started together do not look together."""

HOLD_SECONDS = 60.0
"""How long a job that was granted only devices that failed in this run keeps them before it ends.

A scheduler gives a device that was just returned to the next job in the queue. While this job holds
it, other jobs get better ones, and retries are not used up in seconds.
"""

_MESSAGE_SECONDS = 60.0

_ENOUGH_SHARE = 0.5
"""No task needs more than this share of a device to be free: it can halve its batches."""

_FREE_SHARE = 0.1
"""Every task needs this share to be free: idle contexts and the driver take some hundred MiB."""


def lease_one(
    devices: Sequence[Device], grant: Grant | None, job: str | None, needed: int,
    limit: float | None, listed: Callable[[], list[Device]], prefer: int | None,
    barred: Callable[[], Mapping[str, str]],
) -> Device:  # fmt: skip
    """Wait for one of some devices that this process may compute on; lease and return it.

    ``grant`` is what a scheduler or the user says about devices, ``job`` the scheduler's job, if
    any; for the rest see `choose.take`. Raises TryAgain if all have failed in this run, or if no
    lease changed hands for too long; then the error says what keeps the task from each device.
    """
    granted = grant is not None and grant.source != "lease"
    alone = granted and len(devices) == 1  # then the scheduler has chosen it
    hold = min(HOLD_SECONDS if limit is None else limit, HOLD_SECONDS) if granted else 0.0
    uuids = _unfailed(devices, barred(), hold)

    def attempt(found: Sequence[Device]) -> Device | None:
        for device in _in_order([device for device in found if device.uuid in uuids], prefer):
            if device.uuid not in _unfailed(devices, barred(), hold):  # while this task waited
                continue
            if alone and _lease_granted(device, str(grant), job):
                return device
            if not alone and not obstacle(device, needed) and leases.take(device.uuid, job):
                return device
        return None

    if found := attempt(devices):  # without a look, which could get in another task's way
        return found
    holders, last_change, last_message = None, 0.0, -math.inf
    while True:
        now, current = time.monotonic(), {uuid: leases.holder(uuid) for uuid in uuids}
        # Listing starts NVML, slower with more GPUs: skipped while the same tasks hold all.
        changed = current != holders or None in current.values()
        if changed and (found := attempt(listed())):
            return found
        if current != holders:
            holders, last_change = current, now
        if limit is None:
            # If another task of the same job holds a device, the job runs many tasks, and its run
            # time is not that of one task: so the longer limit applies.
            beside = any(holder and holder.job == job for holder in current.values())
            patience = JOB_WAIT_SECONDS if job and not beside else WAIT_SECONDS
        else:
            patience = limit
        if now - last_change >= patience:
            raise TryAgain(
                f"no device became free, and no lease changed hands for {patience:.0f} s: "
                f"{_situation(uuids, listed(), needed)}; end what hangs ({host.command('doctor')} "
                "on this node shows it), and run again. If shards really take that long, start "
                "only as many at once as there are devices (snakemake --cores); by hand, "
                "--device-wait waits longer"
            )
        if now - last_message >= _MESSAGE_SECONDS:
            log.warning("waiting for a free device: %s", _situation(uuids, listed(), needed))
            last_message = now
        time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))


def _unfailed(devices: Sequence[Device], barred: Mapping[str, str], hold: float) -> list[str]:
    """The devices that have not failed in this run, by UUID; if all have, TryAgain after a hold."""
    if found := [device.uuid for device in devices if device.uuid not in barred]:
        return found
    time.sleep(hold)
    reasons = "; ".join(barred[device.uuid] for device in devices)
    raise TryAgain(
        "no device is left for this task, as each that it may take has failed in this run: "
        f"{reasons}. Run again on another node, or ask for other devices; a new run may take "
        "these again"
    )


def _in_order(devices: Sequence[Device], prefer: int | None) -> list[Device]:
    """The order to try devices in: the freest first, or round robin from the preferred one."""
    if prefer is None:
        return sorted(devices, key=lambda d: (-d.free / d.memory, d.index, d.uuid))
    ordered = sorted(devices, key=lambda device: (device.index, device.uuid))
    first = prefer % max(1, len(ordered))
    return ordered[first:] + ordered[:first]


def _lease_granted(device: Device, grant: str, job: str | None) -> bool:
    """Lease the device that the scheduler gave to this job; False if the task has to wait.

    It waits if the holder is a task of the same job, or names no job. The lease of another job
    does not stop it, as the scheduler may share a device between jobs; nor does a folder of
    leases that cannot be used.
    """
    try:
        if leases.take(device.uuid, job):
            return True
    except TryAgain as error:
        log.warning("%s", error)
        return True
    holder = leases.holder(device.uuid)
    if holder is None or holder.job in (None, job):
        return False
    log.warning("%s is granted by %s, but leased to %s", device.uuid, grant, holder.words)
    return True


def _situation(uuids: Sequence[str], devices: Sequence[Device], needed: int) -> str:
    """What keeps the task from each device, for a message; some may no longer be listed."""
    listed = {device.uuid: device for device in devices}
    parts = []
    for uuid in uuids:
        if (device := listed.get(uuid)) is None:
            parts.append(f"{uuid} does not answer any more")
            continue
        holder = leases.holder(uuid)
        why = f"leased to {holder.words}" if holder else obstacle(device, needed)
        free = f"{human_bytes(device.free)} of {human_bytes(device.memory)} free"
        why = why or "locked by an unknown program, or free again"
        parts.append(f"{uuid} ({device.name}, {free}): {why}")
    return "; ".join(parts)


def obstacle(device: Device, needed: int) -> str | None:
    """Why a task should not compute on a device, leases aside; None if it may."""
    if device.mode == "prohibited":
        return "its compute mode prohibits all computing"
    # Those of other containers and users may be hidden.
    pids = ", ".join(str(process.pid) for process in device.processes)
    others = f"process {pids}" if pids else "a process that NVML does not show"
    if device.mode.startswith("exclusive") and pids:
        return f"it is in {device.mode} mode, and {others} uses it"
    enough = max(min(needed, _ENOUGH_SHARE * device.memory), _FREE_SHARE * device.memory)
    if device.free < enough:
        return f"{others} fills it: {human_bytes(round(enough))} should be free"
    return None
