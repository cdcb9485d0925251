"""A run in figures for a cluster's monitoring, as prometheus-client writes and serves them.

Names and units follow https://prometheus.io/docs/practices/naming. Series are counted by device,
node, stage and state, never by shard (but for the one that works longest). Shards that are done are
a gauge: a counter that falls, where one is made anew, is a restart to Prometheus.
"""

import contextlib
import math
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from shardwise.devices.quarantine import CPU
from shardwise.errors import InputError, one_line
from shardwise.files.commit import commit
from shardwise.observe.folder import Observer
from shardwise.observe.observation import DONE, RUNNING, STATES, DeviceOfNode, Observation
from shardwise.observe.verdict import verdict
from shardwise.records.timeline import PHASES, STAGES

BUCKETS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
"""Upper bounds, in seconds, by which the durations of shards are counted."""

EVERY_SECONDS = 5.0
"""A folder is looked at no more often, however often somebody asks."""

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")

_GAUGES = {
    "utilisation": "Share of the last moments in which a kernel ran.",
    "memory_bytes": "Memory of the device in use, by anyone.",
    "memory_total_bytes": "Memory that the device has.",
    "memory_unlisted_bytes": "Memory in use that no process has of those that are listed.",
    "power_watts": "Power that the device draws.",
    "temperature_celsius": "Temperature of the device.",
    "clock_sm_hertz": "Clock of the multiprocessors.",
    "clock_memory_hertz": "Clock of the memory.",
    "pcie_received_bytes_per_second": "Bytes that come to the device from the host.",
    "pcie_sent_bytes_per_second": "Bytes that go from the device to the host.",
    "processes": "Processes that compute on the device.",
    "ecc_uncorrected": "Memory errors not corrected since the driver was loaded.",
}
"""What a task at work tells of its device, with the help of the metric."""

_UNITS = {"utilisation": "_ratio", "ecc_uncorrected": "_errors"}
"""What the names of metrics have beside those of the gauges."""

_MOST_LETTERS = 500
_WHO = ("device", "node")


class Figures:
    """The metrics of a run, as a collector of prometheus-client."""

    def __init__(self, look: Callable[[], Observation]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Every metric with a sample; all have the label ``results``: where the run lies."""
        seen = self._look()
        results = _plain(str(seen.results.root.absolute()))
        parts = (_run, _stages, _devices, _shards_of_devices)
        for name, what, keys, values in chain.from_iterable(part(seen) for part in parts):
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"shardwise_{name}", what, labels=("results", *keys))
            # A device may have any name; of two equal series Prometheus would refuse everything.
            series = {tuple(map(_plain, key)): value for key, value in values.items()}
            for key, value in series.items():
                if value is not None:
                    family.add_metric((results, *key), value)
            if family.samples:
                yield family
        seconds = [one.seconds for one in seen.shards.values() if one.seconds is not None]
        durations = HistogramMetricFamily(
            "shardwise_shard_duration_seconds", "How long the shards took that are done.",
            labels=("results",),
        )  # fmt: skip
        bounds = [(f"{bound:.0f}", bound) for bound in BUCKETS] + [("+Inf", math.inf)]
        buckets = [(word, sum(one <= bound for one in seconds)) for word, bound in bounds]
        durations.add_metric((results,), buckets, math.fsum(seconds))
        yield durations


def text(seen: Observation) -> str:
    """The metrics of a run at one moment."""
    return generate_latest(Figures(lambda: seen)).decode()


def write(seen: Observation) -> None:
    """Commit ``metrics.prom``, for the textfile collector of node_exporter."""
    with commit(seen.results.metrics) as file:
        file.write(text(seen).encode())


@contextlib.contextmanager
def serve(
    observer: Observer, host: str = "127.0.0.1", port: int = 0, every: float = EVERY_SECONDS
) -> Iterator[int]:
    """Serve the metrics of a run while the context lasts, and yield the port; 0: any that is free.

    Whoever can reach the port can read the figures of the run and the name of its folder. Nobody
    else may look through ``observer`` meanwhile; it looks at most ``every`` so many seconds.

    Raises
    ------
    InputError
        Where nobody can listen there.
    """
    registry = CollectorRegistry()
    registry.register(Figures(_seldom(observer, every)))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot listen on {host}, port {port}: {why}; name another port, or 0 for any"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _seldom(observer: Observer, every: float) -> Callable[[], Observation]:
    """The last look at a folder; a new one where that is too old. Threads may ask at once."""
    lock, until, last = threading.Lock(), 0.0, None

    def look() -> Observation:
        nonlocal until, last
        with lock:
            if last is None or time.monotonic() >= until:
                last = observer.look()
                until = time.monotonic() + every
            return last

    return look


def _plain(value: str) -> str:
    return one_line(value)[:_MOST_LETTERS]


Figure = tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float | None]]
"""A metric: its name, its help, the names of its labels, and its values by their labels."""


def _run(seen: Observation) -> Iterator[Figure]:
    """The verdict, and the shards by their state."""
    kind, shards = verdict(seen).kind, list(seen.shards.values())
    done = [one for one in shards if one.state == DONE]
    counts = Counter(one.state for one in shards)
    seconds = [one.seconds for one in shards if one.seconds is not None]
    running = [one for one in shards if one.state == RUNNING and one.started is not None]
    oldest = sorted(running, key=lambda one: one.started or 0.0)[:1]
    ended = [one.finished for one in done if one.finished is not None]
    yield ("run_verdict", "1 under the verdict on the run, else 0.", ("verdict",),
           {(word,): word == kind for word in VERDICTS})  # fmt: skip
    yield ("stage_failed", "1 for each stage for all that has failed.", ("stage",),
           {(stage,): 1 for stage in seen.failures})  # fmt: skip
    yield ("shards", "Shards of the plan by their state.", ("state",),
           {(state,): counts[state] for state in STATES})  # fmt: skip
    yield ("oldest_running_shard_seconds", "For how long the oldest task works.", ("shard",),
           {(one.shard,): max(0.0, seen.at - (one.started or 0.0)) for one in oldest})  # fmt: skip
    for name, what, value in (
        ("run_proven", "Whether all is done, and the sum is proven: 1, else 0.", kind == "proven"),
        ("last_look_timestamp_seconds", "When these figures were taken.", seen.at),
        ("planned_bytes", "Bytes of the input of all shards.", sum(one.bytes for one in shards)),
        ("done_bytes", "Bytes of the input of shards that are done.",
         sum(one.bytes for one in done)),
        ("attempts_total", "Tasks that have begun a shard.", sum(one.attempts for one in shards)),
        ("median_shard_duration_seconds", "Median of the shards that are done.",
         statistics.median(seconds) if seconds else None),
        ("last_finished_timestamp_seconds", "When the last shard was done.",
         max(ended, default=None)),
    ):  # fmt: skip
        yield name, what, (), {(): value}


def _who(device: DeviceOfNode | None) -> tuple[str, str]:
    """The labels of a device, to count by."""
    return ("unknown", "unknown") if device is None else (device.key, device.node)


def _stages(seen: Observation) -> Iterator[Figure]:
    """Where the time went, and what the stages did."""
    held, busy, moved, flop = (defaultdict[Any, float](float) for _ in range(4))
    for one in seen.shards.values():
        if one.timeline is None:
            continue
        who = _who(one.device)
        for phase in PHASES:
            held[phase, *who] += one.timeline.held[phase]
        for stage in STAGES:
            busy[stage, *who] += one.timeline.busy[stage]
            if stage == "compute":
                flop[who] += one.timeline.work[stage]
            else:
                moved[stage, *who] += one.timeline.work[stage]
    yield "shard_held_seconds", "Seconds by what held shards up.", ("phase", *_WHO), held
    yield "stage_busy_seconds", "Seconds in which a stage was at work.", ("stage", *_WHO), busy
    yield "stage_bytes", "Bytes that went through a stage.", ("stage", *_WHO), moved
    yield "floating_point_operations", "Operations that the products took.", _WHO, flop


def _devices(seen: Observation) -> Iterator[Figure]:
    """Who the devices are, whether they work or are barred, and what each does now."""
    at_work = [one for one in seen.shards.values() if one.state == RUNNING]
    running = Counter(_who(one.device) for one in at_work)
    known = {_who(one.device): one.device for one in seen.shards.values() if one.device}
    # A CPU is only noted there: tasks take it as before.
    barred = {entry.uuid: entry.host for entry in seen.quarantined if entry.uuid != CPU}
    uuids = {device.uuid for device in known.values()}
    others = {(uuid, node): True for uuid, node in barred.items() if uuid not in uuids}
    yield ("device_info", "A device that has computed for this run.", ("name", *_WHO),
           {(device.name, *who): 1 for who, device in known.items()})  # fmt: skip
    yield ("device_running_shards", "Tasks at work on a device.", _WHO,
           {who: running[who] for who in known})  # fmt: skip
    yield ("device_quarantined", "Whether no task may take a device: 1, else 0.", _WHO,
           {who: device.uuid in barred for who, device in known.items()} | others)  # fmt: skip
    now: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in at_work:  # of two tasks on one device, the first
        if one.gauge is not None and one.device is not None:
            now.setdefault(_who(one.device), one.gauge)
    for key, what in _GAUGES.items():
        name = f"device_{key}{_UNITS.get(key, '')}"
        yield name, what, _WHO, {who: gauge.get(key) for who, gauge in now.items()}


def _shards_of_devices(seen: Observation) -> Iterator[Figure]:
    """What the shards that are done come to, by device; one that tells nothing has no sample."""
    done: Counter[tuple[str, str]] = Counter()
    energy, uncorrected, corrected, throttled = (defaultdict[Any, float](float) for _ in range(4))
    for one in seen.shards.values():
        if one.state != DONE:
            continue
        who, telemetry = _who(one.device), one.telemetry or {}
        done[who] += 1
        for key, sums in (("energy_joules", energy), ("ecc_uncorrected", uncorrected),
                          ("ecc_corrected", corrected)):  # fmt: skip
            if telemetry.get(key) is not None:
                sums[who] += telemetry[key]
        for reason, seconds in (telemetry.get("throttled_seconds") or {}).items():
            throttled[reason, *who] += seconds
    yield "device_done_shards", "Shards that are done.", _WHO, done
    yield "energy_joules", "Energy that shards took.", _WHO, energy
    yield ("ecc_uncorrected_errors", "Memory errors during shards that were not corrected.", _WHO,
           uncorrected)  # fmt: skip
    words = "Memory errors during shards that were corrected."
    yield "ecc_corrected_errors", words, _WHO, corrected
    yield "throttled_seconds", "Seconds of clocks held back.", ("reason", *_WHO), throttled
