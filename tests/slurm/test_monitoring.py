"""A real Prometheus follows a run under a real Slurm, from the results folder alone."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from shardwise.observe import endpoint
from shardwise.observe.folder import Observer

from tests.monitoring import prometheus
from tests.monitoring.test_dashboard import QUERIES
from tests.slurm.cluster import SlurmCluster
from tests.slurm.test_run import SlurmNight

pytestmark = [pytest.mark.slurm, pytest.mark.nightly, pytest.mark.timeout(600)]

SHARDS = 6


@pytest.fixture
def night(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmNight]:
    """A fresh workspace on an idle cluster."""
    night = SlurmNight(slurm, tmp_path / "workspace")
    yield night
    night.stop()
    slurm.cancel_all()


def test_prometheus_follows_a_run_to_its_proof(night: SlurmNight, tmp_path: Path) -> None:
    """Shards wait, are done and proven, one after the other, and every query is answered."""
    night.folder_of(SHARDS)
    night.workspace.configure(input="stack", shards=SHARDS, materialize=False)
    root = night.workspace.file(".")
    data = tmp_path / "prometheus"
    data.mkdir()
    with (
        endpoint.serve(Observer(root), every=0.5) as port,
        prometheus.scraping(data, port) as server,
    ):
        assert server.query('shardwise_run_verdict{verdict="empty"} == 1')
        run = night.start(*night.held())
        waiting = f'shardwise_shards{{state="waiting"}} == {SHARDS}'
        night.wait_for("Prometheus sees shards that wait", lambda: server.query(waiting))
        assert server.query("shardwise_run_proven == 0")
        night.release()
        assert run.wait(timeout=400) == 0, night.output()
        night.wait_for("it sees the proof", lambda: server.query("shardwise_run_proven == 1"))
        assert server.query(f'shardwise_shards{{state="done"}} == {SHARDS}')
        # From none to all while it watched: a rate that is no guess.
        assert server.query("delta(shardwise_done_bytes[10m]) > 0")
        folder = re.escape(str(root.absolute())).replace("\\", "\\\\")
        answers = {expr: server.query(expr.replace("$results", folder)) for _, expr in QUERIES}
        states = next(expr for expr in answers if "by (state)" in expr)
        assert len(answers[states]) == len({"done", "running", "failed", "waiting", "damaged"})
        assert server.alerts() == set()
