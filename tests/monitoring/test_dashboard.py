"""A real Prometheus scrapes a run, and answers each question of the dashboard."""

import json
import os
import re
import time

import pytest
from shardwise.observe import metrics
from shardwise.observe.folder import Observer
from shardwise.records.failures import Failure

from tests import factories, pretend
from tests.monitoring import prometheus

DASHBOARD = json.loads(
    (factories.ROOT / "docs" / "monitoring" / "shardwise-dashboard.json").read_text()
)
QUERIES = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A Prometheus that has seen a run of which some shards were done meanwhile."""
    prometheus.ensure()  # it may take longer than what is at work is believed to be
    made = pretend.run(
        tmp_path_factory.mktemp("run"), shards=24, failed=1, running=3, waiting=4, suspect=1,
        slow_device=True, at=time.time(),
    )  # fmt: skip
    stage = f"reduce-{made.plan.key}"
    pretend.fail(made.plan.results, stage, Failure(stage, 75, "no room", "node01", made.at))
    aside = [made.receipt(shard) for shard in made.roles["done"][:8]]
    for path in aside:
        os.rename(path, path.with_suffix(".aside"))
    port = metrics.serve(Observer(made.root).look).server_port
    with prometheus.scraping(tmp_path_factory.mktemp("prometheus"), port) as server:
        done = 'shardwise_shards{state="done"}'
        server.root = re.escape(str(made.root))
        prometheus.wait(lambda: server.query(f"{done} == {len(made.roles['done']) - 8}"))
        for path in aside:
            os.rename(path.with_suffix(".aside"), path)
        prometheus.wait(lambda: server.query(f"{done} == {len(made.roles['done'])}"))
        yield server


@pytest.mark.parametrize(("title", "expr"), QUERIES)
def test_a_query_of_the_dashboard_is_answered(served, title, expr):
    """Each query of each panel parses, and brings at least one series with figures."""
    found = served.query(expr.replace("$results", served.root.replace("\\", "\\\\")))
    assert found, f"{title}: {expr}"
    assert all(float(one["value"][1]) >= 0 for one in found)


def test_alerts_are_raised_on_what_failed(served):
    """By the rules of docs/monitoring, a failed shard and a failed stage raise alerts."""
    expected = {"ShardwiseShardsFailed", "ShardwiseStageFailed"}
    prometheus.wait(lambda: expected <= served.alerts())
