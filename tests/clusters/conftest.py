"""The fixtures of tests on real schedulers: each test runs on every scheduler of `KINDS`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.cluster import Cluster, session_cluster
from tests.clusters.grid_engine.cluster import GridEngine
from tests.clusters.night import ArrayNight, Night
from tests.clusters.slurm.cluster import Slurm

KINDS: dict[str, type[Cluster]] = {"slurm": Slurm, "grid_engine": GridEngine}


@pytest.fixture(
    scope="session", params=[pytest.param(n, marks=getattr(pytest.mark, n)) for n in KINDS]
)
def site(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster; tests that leave jobs there cancel them."""
    with session_cluster(request.param, KINDS[request.param]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nodes(site: Cluster) -> Iterator[Cluster]:
    """A running cluster of several nodes."""
    other = site.of_several_nodes()
    if other is None:
        yield site
        return
    with session_cluster(f"{site.profile}-nodes", lambda: other) as cluster:
        yield cluster


@pytest.fixture
def night(site: Cluster, tmp_path: Path) -> Iterator[Night]:
    """A fresh workspace on an idle cluster."""
    night = Night(site, tmp_path / "with a space")
    yield night
    night.stop()


@pytest.fixture
def night_of_nodes(nodes: Cluster, tmp_path: Path) -> Iterator[Night]:
    """A fresh workspace on an idle cluster of several nodes."""
    night = Night(nodes, tmp_path / "with a space")
    yield night
    night.stop()


@pytest.fixture
def array_night(site: Cluster, tmp_path: Path) -> Iterator[ArrayNight]:
    """A fresh workspace under `dispatch: array` on an idle cluster."""
    night = ArrayNight(site, tmp_path / "with a space")
    yield night
    night.stop()
