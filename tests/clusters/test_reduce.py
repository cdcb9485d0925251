"""The reduce in a scheduler's job: one world over what was granted, one exit code, no rank left."""

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from shardwise.numerics.tree import TreeSum
from shardwise.plan.plan import Plan

from tests import factories, processes
from tests.clusters.cluster import Cluster
from tests.clusters.conftest import on_each_site
from tests.clusters.jobs import waiting_ranks

pytestmark = pytest.mark.timeout(600)

ON_ONE = ("one node", "one node, mpiexec", "one host")
BUT_MPIEXEC = on_each_site("reduces", night=("one node, mpiexec", "two nodes, mpiexec"))


@pytest.fixture
def cluster(request: pytest.FixtureRequest, site: Cluster, way: str) -> Iterator[Cluster]:
    """An idle cluster with as many nodes as the ranks need."""
    several = len(site.reduces[way].counts) > 1
    found = request.getfixturevalue("nodes") if several else site
    yield found
    found.cancel_all()


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    """A plan of products whose sum rounds, with its ledger."""
    left = factories.noise((9, 8, 8))
    return factories.listed(factories.plan(tmp_path, left, shards=3, materialize=False))


@pytest.fixture
def submit(cluster: Cluster, way: str, made: Plan) -> Callable[[], int]:
    """Submits a job that sums the plan; it starts its ranks itself."""
    found = cluster.reduces[way]
    line = shlex.join(
        factories.command("reduce", "--plan", made.results.plan, "--launcher", found.launcher)
    )
    return lambda: cluster.submit(line, *found.options)


@pytest.mark.parametrize(("site", "way"), on_each_site("reduces", night=ON_ONE), indirect=["site"])
def test_the_ranks_are_where_they_were_granted(cluster, way, made, submit):
    """As many as the job has tasks, on its nodes, in one world; and the sum of the tree."""
    job = submit()
    assert cluster.finish(job) == 0, cluster.printed(job)
    nodes = json.loads(made.results.summary.read_text())["nodes"]
    assert tuple(sorted(nodes.values(), reverse=True)) == cluster.reduces[way].counts
    products = factories.products(made)
    total = TreeSum(np, products.shape[1:], products.dtype.name)
    total.add(products, 0)
    assert np.load(made.results.statistic("sum")).tobytes() == total.value().tobytes()


@pytest.mark.fault("a rank that raises")
@pytest.mark.parametrize(
    ("site", "way"),
    [way for way in BUT_MPIEXEC if way.values[1].startswith("one ")],
    indirect=["site"],
)
def test_the_exit_code_reaches_the_scheduler(cluster, made, submit):
    """A missing product ends the job with 3, its error told once."""
    factories.file(made, "product", "00001").unlink()
    job = submit()
    assert cluster.finish(job) == 3, cluster.printed(job)
    assert cluster.printed(job).count(" ERROR ") == 1
    assert "00001" in cluster.printed(job)
    assert not made.results.statistic("sum").exists()


@pytest.mark.fault("a rank that is killed")
@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.parametrize("how", ["kill", factories.nightly("cancel")])
@pytest.mark.parametrize(
    ("site", "way"),
    [way for way in BUT_MPIEXEC if not way.values[1].startswith("one ")],
    indirect=["site"],
)
def test_no_rank_outlives_another_or_its_job(cluster, way, tmp_path, how):
    """One rank is killed, or the job is cancelled: all that the job has started is gone soon."""
    found, before = cluster.reduces[way], cluster.own_processes()
    job, ranks = waiting_ranks(cluster, tmp_path, *found.options, launcher=found.launcher)
    if how == "cancel":
        cluster.cancel(job)
    else:
        os.kill(ranks[2], signal.SIGKILL)
    assert cluster.finish(job) != 0
    processes.until(lambda: not processes.living(ranks), 20)
    processes.until(lambda: cluster.own_processes() <= before, 60)
