"""The metrics of a run for a cluster's monitoring, written by prometheus-client.

Names and units follow https://prometheus.io/docs/practices/naming. There are series per device,
node, stage and state, but none per shard (except the one at work longest). Done shards are a
gauge: their number falls if one is made anew, and Prometheus takes a falling counter for a restart.
"""

import statistics
from collections import Counter
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from shardwise.errors import one_line
from shardwise.observe.status import DONE, RUNNING, VERDICTS, Status

_WHO = ("device", "node")


def text(seen: Status) -> str:
    """The metrics of a run at one moment; the label ``results`` is the path of its folder."""
    registry, root = CollectorRegistry(), one_line(str(seen.results.root.absolute()))
    oldest = sorted((one.started, one.shard) for one in seen.of(RUNNING))
    durations = [one.finished - one.started for one in seen.of(DONE)]
    suspects = {(one_line(uuid), why.host) for uuid, why in seen.suspects.items()}
    done, held = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for one in seen.of(DONE):
        device = one.device
        who = device.uuid or f"{device.name} of {device.node}", device.node
        done[who] += 1
        held.update({(phase, *who): spent for phase, spent in one.held.items()})
    # Of each gauge: name, help, labels besides ``results``, and values by the labels' values.
    gauges: tuple[tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float]], ...] = (
        ("run_verdict", "1 for the current verdict on the run, else 0.", ("verdict",),
         {(word,): word == seen.verdict.kind for word in VERDICTS}),
        ("last_look_timestamp_seconds", "When these figures were taken.", (), {(): seen.at}),
        ("stage_failed", "1 for each stage for all shards that has failed.", ("stage",),
         {(stage,): 1.0 for stage in seen.failures}),
        ("shards", "Shards of the plan by their state.", ("state",),
         {(state,): n for state, n in seen.counts.items()}),
        ("done_bytes", "Bytes of the input of shards that are done.", (), {(): seen.bytes(DONE)}),
        ("median_shard_duration_seconds", "Median of the shards that are done.", (),
         {(): statistics.median(durations)} if durations else {}),
        ("oldest_running_shard_seconds", "How long the oldest task has worked.", ("shard",),
         {(shard,): max(0.0, seen.at - began) for began, shard in oldest[:1]}),
        ("device_suspect", "1 for each device that was blamed for a failure.", _WHO,
         dict.fromkeys(suspects, 1.0)),
        ("device_done_shards", "Shards done.", _WHO, done),
        ("shard_held_seconds", "Seconds shards were held up.", ("phase", *_WHO), held),
    )  # fmt: skip
    for name, words, labels, values in gauges:
        if values:
            gauge = Gauge(f"shardwise_{name}", words, ("results", *labels), registry=registry)
            for own, value in values.items():
                gauge.labels(root, *own).set(value)
    return generate_latest(registry).decode()
