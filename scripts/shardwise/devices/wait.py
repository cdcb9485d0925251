"""How a task waits for a device: until one is free, and leased to it."""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from shardwise import host
from shardwise.devices import leases
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
"""How long a job that has only devices that failed in this run keeps them before it ends.

A scheduler gives a device that was just returned to the next job in the queue. While this job holds
it, other jobs get better ones, and retries are not used up in seconds.
"""

_MESSAGE_SECONDS = 60.0

_ENOUGH_SHARE = 0.5
"""No task needs more than this share of a device to be free: it can halve its batches."""

_FREE_SHARE = 0.1
"""Every task needs this share to be free: idle contexts and the driver take some hundred MiB."""


def lease_one(
    look: Callable[[], list[Device]], job: str | None, needed: int, limit: float | None,
    barred: Callable[[], Mapping[str, str]],
) -> Device:  # fmt: skip
    """Wait for a device that this process may compute on; lease and return it, the freest first.

    ``look`` lists those that it may choose from, ``job`` is the scheduler's job, if any; for the
    rest see `choose.take`. Raises TryAgain if all have failed in this run, or if no lease changed
    hands for too long; then the error says what keeps the task from each device.
    """
    holders: list[str | None] = []
    last_change, last_message = 0.0, -math.inf
    hold = min(HOLD_SECONDS, HOLD_SECONDS if limit is None else limit) if job else 0.0
    while True:
        devices = _unfailed(look(), barred(), hold)
        for device in sorted(devices, key=lambda d: (-d.free / d.memory, d.index, d.uuid)):
            if not obstacle(device, needed) and leases.take(device.uuid, job):
                return device
        now, found = time.monotonic(), [leases.holder(device.uuid) for device in devices]
        if found != holders:
            holders, last_change = found, now
        patience = limit
        if patience is None:
            # If another task of the same job holds a device, the job runs many tasks, and its run
            # time is not that of one task: so the longer limit applies.
            beside = any(f" in {job} since " in (holder or "") for holder in holders)
            patience = JOB_WAIT_SECONDS if job and not beside else WAIT_SECONDS
        if now - last_change >= patience:
            raise TryAgain(
                f"no device became free, and no lease changed hands for {patience:.0f} s: "
                f"{_situation(devices, needed)}; end what hangs ({host.command('doctor')} on this "
                "node shows it), and run again. If shards really take that long, start only as "
                "many at once as there are devices (snakemake --cores); by hand, --device-wait "
                "waits longer"
            )
        if now - last_message >= _MESSAGE_SECONDS:
            log.warning("waiting for a free device: %s", _situation(devices, needed))
            last_message = now
        time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))


def _unfailed(
    devices: Sequence[Device], barred: Mapping[str, str], hold: float
) -> Sequence[Device]:
    """The devices that have not failed in this run; if there is none, TryAgain after a hold."""
    if found := [device for device in devices if device.uuid not in barred]:
        return found
    time.sleep(hold)
    reasons = "; ".join(barred[device.uuid] for device in devices)
    raise TryAgain(
        "no device is left for this task, as each that it may take has failed in this run: "
        f"{reasons}. Run again on another node, or ask for other devices; a new run may take "
        "these again"
    )


def _situation(devices: Sequence[Device], needed: int) -> str:
    """What keeps the task from each device, for a message."""
    parts = []
    for device in devices:
        holder = leases.holder(device.uuid)
        why = f"leased to {holder}" if holder else obstacle(device, needed) or "free again"
        free = f"{human_bytes(device.free)} of {human_bytes(device.memory)} free"
        parts.append(f"{device.uuid} ({device.name}, {free}): {why}")
    return "; ".join(parts)


def obstacle(device: Device, needed: int) -> str | None:
    """Why a task should not compute on a device, leases aside; None if it may."""
    enough = max(min(needed, _ENOUGH_SHARE * device.memory), _FREE_SHARE * device.memory)
    if device.free >= enough:
        return None
    # Those of other containers and users may be hidden.
    pids = ", ".join(str(process.pid) for process in device.processes)
    others = f"process {pids}" if pids else "a process that NVML does not show"
    return f"{others} fills it: {human_bytes(round(enough))} should be free"
