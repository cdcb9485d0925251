"""The fixtures of tests on real schedulers: each test runs on every scheduler of `KINDS`."""

from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from tests.clusters.cluster import Cluster, session_cluster
from tests.clusters.grid_engine.cluster import GridEngine
from tests.clusters.night import ArrayNight, Night
from tests.clusters.slurm.cluster import Slurm
from tests.factories import nightly

KINDS: dict[str, type[Cluster]] = {"slurm": Slurm, "grid_engine": GridEngine}


def on_each_site(ways: str, night: Container[str] = ()) -> list[object]:
    """Pairs of a scheduler and one of its ways, by the attribute that names them; some at night."""
    return [
        pytest.param(name, way, marks=[getattr(pytest.mark, name)]
                     + [pytest.mark.nightly] * (way in night))
        for name, kind in KINDS.items() for way in getattr(kind, ways)
    ]  # fmt: skip


SLURM_FIRST = pytest.mark.parametrize("site", ["slurm", nightly("grid_engine")], indirect=True)
GRID_ENGINE_FIRST = pytest.mark.parametrize(
    "site", [nightly("slurm"), "grid_engine"], indirect=True
)
"""For what does not depend on the scheduler."""


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
def idle(site: Cluster) -> Iterator[Cluster]:
    """A running cluster where the test leaves no job."""
    yield site
    site.cancel_all()


def _workspace(kind: type[Night], name: str) -> object:
    """A fixture: a fresh workspace on an idle cluster, which the fixture `name` gives."""

    @pytest.fixture
    def night(request: pytest.FixtureRequest, site: Cluster, tmp_path: Path) -> Iterator[Night]:
        found = kind(request.getfixturevalue(name), tmp_path / "with a space")
        yield found
        found.stop()

    return night


night = _workspace(Night, "site")
night_of_nodes = _workspace(Night, "nodes")
array_night = _workspace(ArrayNight, "site")
array_night_of_nodes = _workspace(ArrayNight, "nodes")
