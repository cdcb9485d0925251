"""The metrics of a run for a cluster's monitoring, written by prometheus-client.

Names and units follow https://prometheus.io/docs/practices/naming. There are series per device,
node, stage and state, but none per shard (except the one at work longest). Done shards are a
gauge: their number falls if one is made anew, and Prometheus takes a falling counter for a restart.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from shardwise.errors import one_line
from shardwise.files.commit import commit
from shardwise.observe.status import DONE, RUNNING, VERDICTS, ShardStatus, Status

_WHO = ("device", "node")


def text(seen: Status) -> str:
    """The metrics of a run at one moment; the label ``results`` is the path of its folder."""
    registry, root = CollectorRegistry(), one_line(str(seen.results.root.absolute()))
    for name, words, labels, values in _gauges(seen):
        if values:
            gauge = Gauge(f"shardwise_{name}", words, ("results", *labels), registry=registry)
            for own, value in values.items():
                gauge.labels(root, *own).set(value)
    return generate_latest(registry).decode()


def write(seen: Status) -> None:
    """Commit ``metrics.prom``, for the textfile collector of node_exporter."""
    with commit(seen.results.metrics) as file:
        file.write(text(seen).encode())


def _who(shard: ShardStatus) -> tuple[str, str]:
    return shard.device.key, shard.device.node


def _gauges(
    seen: Status,
) -> Iterator[tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float]]]:
    """Of each gauge: name, help, labels besides ``results``, and values by the labels' values."""
    oldest = sorted((one.started, one.shard) for one in seen.of(RUNNING))
    durations = [one.finished - one.started for one in seen.done]
    suspects = {(one_line(uuid), why.host) for uuid, why in seen.suspects.items()}
    done = Counter(map(_who, seen.done))
    held = Counter[tuple[str, ...]]()
    for one in seen.done:
        held.update({(phase, *_who(one)): spent for phase, spent in one.held.items()})
    yield from (
        ("run_verdict", "1 for the current verdict on the run, else 0.", ("verdict",),
         {(word,): word == seen.verdict.kind for word in VERDICTS}),
        ("last_look_timestamp_seconds", "When these figures were taken.", (), {(): seen.at}),
        ("stage_failed", "1 for each stage for all shards that has failed.", ("stage",),
         {(stage,): 1.0 for stage in seen.failures}),
        ("shards", "Shards of the plan by their state.", ("state",),
         {(state,): float(n) for state, n in seen.counts.items()}),
        ("done_bytes", "Bytes of the input of shards that are done.", (),
         {(): float(seen.bytes(DONE))}),
        ("median_shard_duration_seconds", "Median of the shards that are done.", (),
         {(): statistics.median(durations)} if durations else {}),
        ("oldest_running_shard_seconds", "How long the oldest task has worked.", ("shard",),
         {(shard,): max(0.0, seen.at - began) for began, shard in oldest[:1]}),
        ("device_suspect", "1 for each device that was blamed for a failure.", _WHO,
         dict.fromkeys(suspects, 1.0)),
        ("device_done_shards", "Shards done.", _WHO, done),
        ("shard_held_seconds", "Seconds shards were held up.", ("phase", *_WHO), held),
    )  # fmt: skip
