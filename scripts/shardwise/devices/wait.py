"""How a task waits for a device: until one is free, and leased to it."""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping

from shardwise.devices import leases
from shardwise.devices.nvml import Device
from shardwise.errors import TryAgain
from shardwise.units import human_bytes

log = logging.getLogger(__name__)

WAIT_SECONDS, JOB_WAIT_SECONDS = 3600.0, 300.0
"""How long a task waits while no lease changes hands: large shards take some minutes. A job of a
cluster requests only some minutes beyond its work, and is killed after them without a word."""

POLL_SECONDS = 1.0
"""Average pause between two looks at the devices; drawn at random each time, so that tasks that
started together do not look together."""

HOLD_SECONDS = 60.0
"""How long a job that has only devices that failed in this run keeps them before it ends.

A scheduler gives a device that was just returned to the next job in the queue. While this job holds
it, other jobs get better ones, and retries are not used up in seconds.
"""

_MESSAGE_SECONDS = 60.0


def lease_one(
    look: Callable[[], list[Device]], in_job: bool, needed: int, limit: float | None,
    prefer: int | None, barred: Callable[[], Mapping[str, str]],
) -> Device:  # fmt: skip
    """Wait for a device that this process may compute on; lease and return it.

    ``look`` lists those that it may choose from, ``in_job`` says whether a scheduler runs this
    process; for the rest see `choose.take`. Raises TryAgain if all have failed in this run, or if
    no lease changed hands for too long; then the error says what keeps the task from each device.
    """
    patience = (JOB_WAIT_SECONDS if in_job else WAIT_SECONDS) if limit is None else limit
    holders: list[str | None] = []
    last_change, last_message = 0.0, -math.inf
    while True:
        devices, failed = look(), barred()
        usable = [device for device in devices if device.uuid not in failed]
        if not usable:
            time.sleep(min(HOLD_SECONDS, patience) if in_job else 0.0)
            reasons = "; ".join(failed[device.uuid] for device in devices)
            raise TryAgain(
                "no device is left for this task, as each that it may take has failed in this run: "
                f"{reasons}. Run again on another node, or ask for other devices; a new run may "
                "take these again"
            )
        usable.sort(key=lambda device: (device.index, device.uuid))
        if prefer is None:
            usable.sort(key=lambda device: -device.free / device.memory)
        first = (prefer or 0) % len(usable)
        for device in usable[first:] + usable[:first]:
            if not obstacle(device, needed) and leases.take(device.uuid):
                return device
        now, found = time.monotonic(), [leases.holder(device.uuid) for device in usable]
        if found != holders:
            holders, last_change = found, now
        situation = "; ".join(
            f"{device.uuid} ({device.name}): "
            + (f"leased to {who}" if who else obstacle(device, needed) or "free again")
            for device, who in zip(usable, holders, strict=True)
        )
        if now - last_change >= patience:
            raise TryAgain(
                f"no device became free, and no lease changed hands for {patience:.0f} s: "
                f"{situation}; end what hangs (shardwise doctor on this node shows it), "
                "and run again. If shards really take that long, start only as many at once as "
                "there are devices (snakemake --cores); by hand, --device-wait waits longer"
            )
        if now - last_message >= _MESSAGE_SECONDS:
            log.warning("waiting for a free device: %s", situation)
            last_message = now
        time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))


def obstacle(device: Device, needed: int) -> str | None:
    """Why a task should not compute on a device, leases aside; None if it may.

    It can halve its batches, so it needs no more than half of the device; idle contexts and the
    driver take some hundred MiB, so it needs a tenth.
    """
    enough = max(min(needed, device.memory // 2), device.memory // 10)
    if device.free >= enough:
        return None
    # Those of other containers and users may be hidden.
    pids = ", ".join(str(process.pid) for process in device.processes)
    others = f"process {pids}" if pids else "a process that NVML does not show"
    return (
        f"{others} fills it: {human_bytes(device.free)} of {human_bytes(device.memory)} are free, "
        f"{human_bytes(enough)} should be"
    )
