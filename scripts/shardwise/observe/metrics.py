"""A run in figures for a cluster's monitoring, as prometheus-client writes and serves them.

Names and units follow https://prometheus.io/docs/practices/naming. Series are counted by device,
node, stage and state, never by shard (but for the one that works longest). Shards that are done are
a gauge: a counter that falls, where one is made anew, is a restart to Prometheus.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from itertools import chain

from prometheus_client import CollectorRegistry, core, generate_latest, start_http_server

from shardwise.errors import InputError, one_line
from shardwise.files.commit import commit
from shardwise.observe.observation import RUNNING, DeviceOfNode, Observation
from shardwise.observe.verdict import verdict

BUCKETS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000)
"""Upper bounds, in seconds, by which the durations of shards are counted."""

VERDICTS = ("proven", "unproven", "unfinished", "failed", "damaged", "empty")

_WHO = ("device", "node")
METRICS = {
    "run_verdict": ("1 under the verdict on the run, else 0.", ("verdict",)),
    "run_proven": ("Whether all is done, and the sum is proven: 1, else 0.", ()),
    "last_look_timestamp_seconds": ("When these figures were taken.", ()),
    "stage_failed": ("1 for each stage for all shards that has failed.", ("stage",)),
    "shards": ("Shards of the plan by their state.", ("state",)),
    "done_bytes": ("Bytes of the input of shards that are done.", ()),
    "median_shard_duration_seconds": ("Median of the shards that are done.", ()),
    "oldest_running_shard_seconds": ("How long the oldest task has worked.", ("shard",)),
    "shard_held_seconds": ("Seconds by what held shards up.", ("phase", *_WHO)),
    "device_running_shards": ("Tasks at work on a device.", _WHO),
    "device_done_shards": ("Shards that are done.", _WHO),
    "device_quarantined": ("Whether no task may take a device: 1, else 0.", _WHO),
}
"""Every metric but the histogram, with its help and its labels beside ``results``."""

_MOST_LETTERS = 500

Sample = tuple[str, tuple[str, ...], float | None]
"""The name of a metric, the values of its labels, and a value; None gives no sample."""


class Figures:
    """The metrics of a run, as a collector of prometheus-client."""

    def __init__(self, look: Callable[[], Observation | None]) -> None:
        self._look = look

    def collect(self) -> Iterator[core.Metric]:
        """Every metric with a sample; all have the label ``results``: where the run lies."""
        seen = self._look()
        if seen is None:
            return
        results = _plain(str(seen.results.root.absolute()))
        series: dict[str, dict[tuple[str, ...], float]] = defaultdict(lambda: defaultdict(float))
        for name, labels, value in chain(_run(seen), _devices(seen), _shards(seen)):
            if value is not None:
                series[name][labels] += value
        for name, (words, names) in METRICS.items():
            labels = ("results", *names)
            family = core.GaugeMetricFamily(f"shardwise_{name}", words, labels=labels)
            # A device may have any name; of two equal series Prometheus would refuse everything.
            plain = {tuple(map(_plain, key)): value for key, value in series[name].items()}
            for own, value in plain.items():
                family.add_metric((results, *own), value)
            if family.samples:
                yield family
        seconds = [one.seconds for one in seen.done if one.seconds is not None]
        buckets = [(str(bound).replace("inf", "+Inf"), sum(one <= bound for one in seconds))
                   for bound in (*BUCKETS, math.inf)]  # fmt: skip
        name, words = "shardwise_shard_duration_seconds", "How long the finished shards took."
        durations = core.HistogramMetricFamily(name, words, labels=("results",))
        durations.add_metric((results,), buckets, math.fsum(seconds))
        yield durations


def text(seen: Observation) -> str:
    """The metrics of a run at one moment."""
    return generate_latest(Figures(lambda: seen)).decode()


def write(seen: Observation) -> None:
    """Commit ``metrics.prom``, for the textfile collector of node_exporter."""
    with commit(seen.results.metrics) as file:
        file.write(text(seen).encode())


def serve(
    look: Callable[[], Observation | None], host: str = "127.0.0.1", port: int = 0
) -> HTTPServer:
    """Serve the metrics of what ``look`` returns, until the process or the server is ended.

    Each request calls it, in a thread. Whoever can reach the port can read the figures of the run
    and the name of its folder. Port 0 is any free port. Raises InputError if nobody can listen
    there.
    """
    registry = CollectorRegistry()
    registry.register(Figures(look))
    try:
        return start_http_server(port, host, registry)[0]
    except (OSError, OverflowError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot listen on {host}, port {port}: {why}; name another port, or 0 for any"
        ) from error


def _plain(value: str) -> str:
    return one_line(value)[:_MOST_LETTERS]


def _run(seen: Observation) -> Iterator[Sample]:
    """The verdict, and the shards by their state."""
    kind = verdict(seen).kind
    seconds = [one.seconds for one in seen.done if one.seconds is not None]
    running = [(one.started, one.shard) for one in seen.shards.values()
               if one.state == RUNNING and one.started is not None]  # fmt: skip
    for word in VERDICTS:
        yield "run_verdict", (word,), word == kind
    yield "run_proven", (), kind == "proven"
    yield "last_look_timestamp_seconds", (), seen.at
    for stage in seen.failures:
        yield "stage_failed", (stage,), 1
    for state, count in seen.counts.items():
        yield "shards", (state,), count
    yield "done_bytes", (), sum(one.bytes for one in seen.done)
    yield "median_shard_duration_seconds", (), statistics.median(seconds) if seconds else None
    for began, shard in sorted(running)[:1]:
        yield "oldest_running_shard_seconds", (shard,), max(0.0, seen.at - began)


def _who(device: DeviceOfNode | None) -> tuple[str, str]:
    """The labels of a device, to count by."""
    return ("unknown", "unknown") if device is None else (device.key, device.node)


def _devices(seen: Observation) -> Iterator[Sample]:
    """Who the devices are, and whether they work or are barred."""
    devices = {_who(one.device): one.device for one in seen.shards.values() if one.device}
    barred = {entry.uuid: entry.host for entry in seen.quarantined}
    for who, device in devices.items():
        yield "device_running_shards", who, 0
        yield "device_quarantined", who, device.uuid in barred
    for uuid in barred.keys() - {device.uuid for device in devices.values()}:
        yield "device_quarantined", (uuid, barred[uuid]), 1
    for one in seen.shards.values():
        if one.state == RUNNING and one.device:
            yield "device_running_shards", _who(one.device), 1


def _shards(seen: Observation) -> Iterator[Sample]:
    """What each finished shard adds to its device."""
    for one in seen.done:
        who = _who(one.device)
        yield "device_done_shards", who, 1
        for phase, seconds in (one.held or {}).items():
            yield "shard_held_seconds", (phase, *who), seconds
