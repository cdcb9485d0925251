"""The metrics of a run agree with its receipts, are in Prometheus' format, and are served."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families
from shardwise.observe import metrics
from shardwise.observe.status import Status

from tests import pretend


def total(seen: Status, name: str, **labels: str) -> float:
    """The sum of all series of a name that have these labels."""
    families = text_string_to_metric_families(metrics.text(seen))
    found = (one for family in families for one in family.samples)
    asked, name = labels.items(), f"shardwise_{name}"
    return sum(one.value for one in found if one.name == name and asked <= one.labels.items())


def test_figures_are_what_the_files_come_to(tmp_path):
    """Each state has its count, seconds and bytes are sums over receipts, a device is suspect."""
    parts = {"failed": 1, "suspect": 1, "running": 3, "waiting": 4, "damaged": 1, "slow": 3}
    made = pretend.run(tmp_path, shards=20, devices=2, nodes=1, **parts)
    seen, done = made.look(), list(made.receipts.values())
    uuid = done[0]["device"]["uuid"]
    own = [receipt["held"] for receipt in done if receipt["device"]["uuid"] == uuid]
    for phase in own[0]:
        told = total(seen, "shard_held_seconds", phase=phase, device=uuid)
        assert told == pytest.approx(math.fsum(held[phase] for held in own))
    assert total(seen, "done_bytes") == seen.bytes("done")
    assert total(seen, "median_shard_duration_seconds") == pytest.approx(10)
    for state, count in seen.counts.items():
        assert total(seen, "shards", state=state) == count == len(made.roles[state])
    assert total(seen, "run_verdict", verdict="damaged") == total(seen, "run_verdict") == 1
    assert total(seen, "oldest_running_shard_seconds", shard=made.roles["running"][0]) == 5
    (uuid,) = seen.suspects
    assert total(seen, "device_suspect", device=uuid) == total(seen, "device_suspect") == 1
