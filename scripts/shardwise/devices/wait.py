"""How a task waits for a device: until one is free, and leased to it."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Search:
    """How a task looks for its device.

    ``grant`` is what a scheduler or the user says of devices, ``job`` the scheduler's job, if any;
    the rest is as `choose.take` has it.
    """

    grant: Grant | None
    job: str | None
    needed: int
    limit: float | None
    listed: Callable[[], list[Device]]
    prefer: int | None
    barred: Callable[[], Mapping[str, str]]

    def lease_one(self, devices: Sequence[Device]) -> Device:
        """Wait until one of some devices could be leased to this process.

        Raises TryAgain if all have failed in this run, or no lease changed hands for too long; it
        says what keeps the task from each device.
        """
        granted = self.grant is not None and self.grant.source != "lease"
        hold = min(HOLD_SECONDS if self.limit is None else self.limit, HOLD_SECONDS)
        usable = given = _leave_out(devices, self.barred(), hold if granted else 0.0)
        alone = granted and len(devices) == 1  # then the scheduler has looked at it
        lease = self._lease_granted if alone else self._lease_free
        uuids = [device.uuid for device in usable]
        holders, last_change, last_message = None, 0.0, float("-inf")
        while True:
            for device in self._in_order(usable):
                if device.uuid in (failed := self.barred()):  # since this task waits
                    _leave_out(given, failed)
                elif lease(device):
                    return device
            now, current = time.monotonic(), _holders(uuids)
            if current != holders:
                holders, last_change = current, now
            patience = self._patience(current.values())
            if now - last_change >= patience:
                raise _out_of_patience(patience, self._situation(uuids))
            if now - last_message >= _MESSAGE_SECONDS:
                log.warning("waiting for a free device: %s", self._situation(uuids))
                last_message = now
            time.sleep(min(random.uniform(0.5, 1.5) * POLL_SECONDS, last_change + patience - now))
            # To list them starts NVML, the dearer the more GPUs: not while the same tasks hold all.
            current = _holders(uuids)
            changed = current != holders or None in current.values()
            usable = [device for device in self.listed() if device.uuid in uuids] if changed else []

    def _in_order(self, devices: Sequence[Device]) -> list[Device]:
        """As this task looks at them: the freest first, or the preferred one and then around."""
        if self.prefer is None:
            return sorted(devices, key=lambda d: (-d.free / d.memory, d.index, d.uuid))
        ordered = sorted(devices, key=lambda device: (device.index, device.uuid))
        first = self.prefer % max(1, len(ordered))
        return ordered[first:] + ordered[:first]

    def _lease_free(self, device: Device) -> bool:
        return obstacle(device, self.needed) is None and leases.take(device.uuid, self.job)

    def _lease_granted(self, device: Device) -> bool:
        """Lease the device that the scheduler gave to this job; False where it has to wait.

        That is for a task of the same job, or for somebody who names no job. The scheduler has
        decided about other jobs: it may share a device, and leases that cannot be kept are no
        reason to stop.
        """
        try:
            if leases.take(device.uuid, self.job):
                return True
            holder = leases.holder(device.uuid)
            if holder and holder.job not in (None, self.job):
                time.sleep(_SIGN_SECONDS)
                holder = leases.holder(device.uuid)
        except TryAgain as error:
            log.warning("%s", error)
            return True
        if holder is None or holder.job in (None, self.job):
            return False
        log.warning("%s is granted by %s, but leased to %s", device.uuid, self.grant, holder.words)
        return True

    def _patience(self, holders: Iterable[leases.Holder | None]) -> float:
        """How many seconds this task waits while no lease changes hands.

        Where a task of the same job is among the holders of the devices, this is a run of many
        tasks within one job, whose own run time is not that of a task.
        """
        if self.limit is not None:
            return self.limit
        alone = self.job and all(holder is None or holder.job != self.job for holder in holders)
        return JOB_WAIT_SECONDS if alone else WAIT_SECONDS

    def _situation(self, uuids: Sequence[str]) -> str:
        """What keeps the task from each device, for a message; some may no longer be listed."""
        listed = {device.uuid: device for device in self.listed()}
        parts = []
        for uuid in uuids:
            if (device := listed.get(uuid)) is None:
                parts.append(f"{uuid} does not answer any more")
                continue
            holder = leases.holder(uuid)
            why = f"leased to {holder.words}" if holder else obstacle(device, self.needed)
            free = f"{human_bytes(device.free)} of {human_bytes(device.memory)} free"
            why = why or "locked by an unknown program, or free again"
            parts.append(f"{uuid} ({device.name}, {free}): {why}")
        return "; ".join(parts)


def _leave_out(
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


def _processes(device: Device) -> str:
    """The processes on a device, by number; other containers' and users' may be hidden."""
    pids = ", ".join(str(process.pid) for process in device.processes)
    return f"process {pids}" if pids else "a process that NVML does not show"
