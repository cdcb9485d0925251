"""A run in figures for a cluster's monitoring: the text format of Prometheus.

Names and units follow https://prometheus.io/docs/practices/naming. Series are counted by device,
node, stage and state, never by shard (but for the one that works longest): there are as many for a
million shards as for ten. What is told of shards that are done is a gauge, not a counter: it falls
where one is made anew, and a counter that falls is a restart to Prometheus, which then counts the
whole run a second time.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.devices.quarantine import CPU
from shardwise.errors import one_line
from shardwise.files.commit import commit
from shardwise.observe.observation import DONE, RUNNING, STATES, Device, Observation, Sighting
from shardwise.observe.verdict import verdict
from shardwise.records.timeline import PHASES, STAGES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what :func:`text` makes."""

BUCKETS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
"""Upper bounds, in seconds, by which the durations of shards are counted."""

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")

_GAUGES = {
    "utilisation": ("utilisation_ratio", "Share of the last moments in which a kernel ran."),
    "memory_bytes": ("memory_bytes", "Memory of the device in use, by anyone."),
    "memory_total_bytes": ("memory_total_bytes", "Memory that the device has."),
    "memory_unlisted_bytes": (
        "memory_unlisted_bytes", "Memory in use that no process has of those that are listed.",
    ),
    "power_watts": ("power_watts", "Power that the device draws."),
    "temperature_celsius": ("temperature_celsius", "Temperature of the device."),
    "clock_sm_hertz": ("clock_sm_hertz", "Clock of the multiprocessors."),
    "clock_memory_hertz": ("clock_memory_hertz", "Clock of the memory."),
    "pcie_received_bytes_per_second": (
        "pcie_received_bytes_per_second", "Bytes that come to the device from the host."),
    "pcie_sent_bytes_per_second": (
        "pcie_sent_bytes_per_second", "Bytes that go from the device to the host."),
    "processes": ("processes", "Processes that compute on the device."),
    "ecc_uncorrected": (
        "ecc_uncorrected_errors", "Memory errors not corrected since the driver was loaded."),
}  # fmt: skip
"""What a task at work tells of its device: the end of the metric's name, and its help."""

_MOST_LETTERS = 500

Labels = Mapping[str, str]


@dataclass
class _Family:
    """One metric: its name, what it is, and its samples (end of the name, labels, value)."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, value: float | None, end: str = "", **labels: str) -> None:
        """One more sample; none where there is no value."""
        if value is not None:
            self.samples.append((end, labels, value))

    def lines(self, shared: Labels) -> Iterator[str]:
        """As Prometheus reads it; nothing where there is no sample."""
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        told = set()
        for end, labels, value in self.samples:
            words = ",".join(f'{k}="{_escaped(v)}"' for k, v in {**shared, **labels}.items())
            series = f"{self.name}{end}{{{words}}}"
            if series not in told:  # of two, Prometheus would refuse everything
                told.add(series)
                yield f"{series} {_figure(value)}"


def text(seen: Observation) -> str:
    """The metrics of a run at one moment. All have the label ``results``: where the run lies."""
    shared = {"results": str(seen.results.root.absolute())}
    families = (*_run(seen), *_shards(seen), *_stages(seen), *_devices(seen), *_gauges(seen))
    lines = [line for family in families for line in family.lines(shared)]
    return "".join(f"{line}\n" for line in lines)


def write(seen: Observation) -> None:
    """Commit ``metrics.prom``, for the textfile collector of node_exporter."""
    with commit(seen.results.metrics) as file:
        file.write(text(seen).encode("utf-8", "replace"))


def _escaped(value: str) -> str:
    """A label's value: a file or a device may have any name."""
    plain = one_line(value)[:_MOST_LETTERS]
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def _figure(value: float) -> str:
    if isinstance(value, float) and not value.is_integer():
        return repr(value) if math.isfinite(value) else "NaN"
    return str(int(value))


# The run.


def _run(seen: Observation) -> Iterator[_Family]:
    told = verdict(seen).kind
    proven = _Family(
        "shardwise_run_proven", "gauge", "Whether all is done, and the sum is proven: 1, else 0."
    )
    proven.add(told == "proven")
    yield proven
    kinds = _Family("shardwise_run_verdict", "gauge", "1 under the verdict on the run, else 0.")
    for kind in VERDICTS:
        kinds.add(kind == told, verdict=kind)
    yield kinds
    looked = _Family(
        "shardwise_last_look_timestamp_seconds", "gauge", "When these figures were taken."
    )
    looked.add(seen.at)
    yield looked
    failed = _Family("shardwise_stage_failed", "gauge", "1 for each stage for all that has failed.")
    for stage in seen.failures:
        failed.add(1, stage=stage)
    yield failed


# The shards.


def _shards(seen: Observation) -> Iterator[_Family]:
    shards = list(seen.shards.values())
    counts = Counter(one.state for one in shards)
    states = _Family("shardwise_shards", "gauge", "Shards of the plan by their state.")
    for state in STATES:
        states.add(counts[state], state=state)
    yield states
    planned = _Family("shardwise_planned_bytes", "gauge", "Bytes of the input of all shards.")
    planned.add(sum(one.bytes for one in shards))
    yield planned
    done = _Family("shardwise_done_bytes", "gauge", "Bytes of the input of shards that are done.")
    done.add(sum(one.bytes for one in shards if one.state == DONE))
    yield done
    tries = _Family("shardwise_attempts_total", "counter", "Tasks that have begun a shard.")
    tries.add(sum(one.attempts for one in shards))
    yield tries
    seconds = [one.seconds for one in shards if one.seconds is not None]
    yield _durations(seconds)
    median = _Family(
        "shardwise_median_shard_duration_seconds", "gauge", "Median of the shards that are done."
    )
    median.add(statistics.median(seconds) if seconds else None)
    yield median
    yield from _ends(seen, shards)


def _durations(seconds: Iterable[float]) -> _Family:
    family = _Family(
        "shardwise_shard_duration_seconds", "histogram", "How long the shards took that are done."
    )
    found = sorted(seconds)
    for bound in (*BUCKETS, math.inf):
        end = "+Inf" if bound == math.inf else _figure(bound)
        family.add(sum(1 for one in found if one <= bound), "_bucket", le=end)
    family.add(math.fsum(found), "_sum")
    family.add(len(found), "_count")
    return family


def _ends(seen: Observation, shards: Iterable[Sighting]) -> Iterator[_Family]:
    """The shard that runs longest, and when the last one ended."""
    running = [one for one in shards if one.state == RUNNING and one.started is not None]
    oldest = min(running, key=lambda one: one.started or 0.0, default=None)
    family = _Family(
        "shardwise_oldest_running_shard_seconds", "gauge", "For how long the oldest task works."
    )
    if oldest is not None:
        family.add(max(0.0, seen.at - (oldest.started or 0.0)), shard=oldest.shard)
    yield family
    ended = [one.finished for one in shards if one.state == DONE and one.finished is not None]
    last = _Family(
        "shardwise_last_finished_timestamp_seconds", "gauge", "When the last shard was done."
    )
    last.add(max(ended, default=None))
    yield last


# Where the time went.


_Who = tuple[str, str]


def _who(device: Device | None) -> _Who:
    """The labels of a device, to count by."""
    return ("unknown", "unknown") if device is None else (device.key, device.node)


def _labels(who: _Who) -> dict[str, str]:
    return dict(zip(("device", "node"), who, strict=True))


def _stages(seen: Observation) -> Iterator[_Family]:
    held, busy, work = (defaultdict[Any, float](float) for _ in range(3))
    for one in seen.shards.values():
        if one.timeline is None:
            continue
        who = _who(one.device)
        for phase in PHASES:
            held[who, phase] += one.timeline.held[phase]
        for stage in STAGES:
            busy[who, stage] += one.timeline.busy[stage]
            work[who, stage] += one.timeline.work[stage]
    for name, label, what, found in (
        ("shardwise_shard_held_seconds", "phase", "Seconds by what held shards up.", held),
        ("shardwise_stage_busy_seconds", "stage", "Seconds in which a stage was at work.", busy),
    ):
        family = _Family(name, "gauge", what)
        for (who, key), seconds in found.items():
            family.add(seconds, **{label: key}, **_labels(who))
        yield family
    moved = _Family("shardwise_stage_bytes", "gauge", "Bytes that went through a stage.")
    flop = _Family(
        "shardwise_floating_point_operations", "gauge", "Operations that the products took."
    )
    for (who, stage), amount in work.items():
        if stage == "compute":
            flop.add(amount, **_labels(who))
        else:
            moved.add(amount, stage=stage, **_labels(who))
    yield from (moved, flop)


# The devices.


def _devices(seen: Observation) -> Iterator[_Family]:
    """What each device has done, and whether it works now."""
    whole = [one for one in seen.shards.values() if one.state == DONE]
    at_work = Counter(_who(one.device) for one in seen.shards.values() if one.state == RUNNING)
    known = {_who(one.device): one.device for one in seen.shards.values() if one.device}
    # A CPU is only noted there: tasks take it as before.
    barred = {entry.uuid: entry.host for entry in seen.quarantined if entry.uuid != CPU}
    info = _Family("shardwise_device_info", "gauge", "A device that has computed for this run.")
    running = _Family("shardwise_device_running_shards", "gauge", "Tasks at work on a device.")
    quarantined = _Family(
        "shardwise_device_quarantined", "gauge", "Whether no task may take a device: 1, else 0."
    )
    for who, device in known.items():
        info.add(1, name=device.name, **_labels(who))
        running.add(at_work[who], **_labels(who))
        quarantined.add(device.uuid in barred, **_labels(who))
    for uuid in barred.keys() - {device.uuid for device in known.values()}:
        quarantined.add(1, device=uuid, node=barred[uuid])
    yield from (info, running, quarantined)
    yield _summed(whole, "shardwise_device_done_shards", "Shards that are done.", lambda one: 1)
    for name, key, what in (
        ("shardwise_energy_joules", "energy_joules", "Energy that shards took."),
        ("shardwise_ecc_uncorrected_errors", "ecc_uncorrected",
         "Memory errors during shards that were not corrected."),
        ("shardwise_ecc_corrected_errors", "ecc_corrected",
         "Memory errors during shards that were corrected."),
    ):  # fmt: skip
        yield _summed(whole, name, what, lambda one, key=key: (one.telemetry or {}).get(key))
    yield _throttled(whole)


def _summed(
    shards: Iterable[Sighting], name: str, what: str, of: Callable[[Sighting], float | None]
) -> _Family:
    """What the shards of each device come to; a device that tells nothing has no sample."""
    found = defaultdict[_Who, float](float)
    for one in shards:
        if (value := of(one)) is not None:
            found[_who(one.device)] += value
    family = _Family(name, "gauge", what)
    for who, total in found.items():
        family.add(total, **_labels(who))
    return family


def _throttled(shards: Iterable[Sighting]) -> _Family:
    found = defaultdict[Any, float](float)
    for one in shards:
        for reason, seconds in ((one.telemetry or {}).get("throttled_seconds") or {}).items():
            found[_who(one.device), reason] += seconds
    family = _Family("shardwise_throttled_seconds", "gauge", "Seconds of clocks held back.")
    for (who, reason), seconds in found.items():
        family.add(seconds, reason=reason, **_labels(who))
    return family


def _gauges(seen: Observation) -> Iterator[_Family]:
    """What tasks at work tell of their devices now; of two on one device, the first."""
    now = {}
    for one in seen.shards.values():
        if one.state == RUNNING and one.gauge is not None and one.device is not None:
            now.setdefault(_who(one.device), one.gauge)
    for key, (name, what) in _GAUGES.items():
        family = _Family(f"shardwise_device_{name}", "gauge", what)
        for who, gauge in now.items():
            family.add(gauge.get(key), **_labels(who))
        yield family
