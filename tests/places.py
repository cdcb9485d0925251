"""Where a run takes place: this machine, a real Slurm, a real Grid Engine; fixtures for tests."""

import os
import signal
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.clusters.cluster import Cluster, session_cluster
from tests.clusters.grid_engine import GridEngine
from tests.clusters.slurm import Slurm
from tests.night import Night

KINDS: dict[str, type[Cluster]] = {"slurm": Slurm, "grid_engine": GridEngine}
DISPATCHES = ("jobs", "array", "pool", "mpi")
PLACES = tuple(
    f"{place} {dispatch}" for place in ("local", *KINDS) for dispatch in DISPATCHES
    if (place, dispatch) != ("local", "array")
)  # fmt: skip


class Local:
    """As `Cluster`, but without a scheduler: here jobs are the processes of a workspace."""

    title, profile, cancels, room = "this machine", "local", "", 2
    quick, variables = ("--cores", "2"), dict[str, str]()
    env = staticmethod(os.environ.copy)
    report = staticmethod(str)

    def enter(self, root: Path) -> list[str]:
        """Note the scripts of the runs; their commands need no words in front."""
        self._scripts = f"{root}/scripts/"
        return []

    def newest(self) -> int:
        return 0  # local jobs have no numbers

    def _living(self) -> list[int]:
        found = processes.running()
        return [pid for pid in found if self._scripts in " ".join(processes.words(pid))]

    def idle(self, after: int) -> bool:
        return not self._living()

    def cancel(self, *handles: str) -> None:
        processes.kill(map(int, handles))

    def cancel_all(self) -> None:
        processes.kill(self._living())


def on(*day: str, places: Container[str] = PLACES) -> pytest.MarkDecorator:
    """Run a test by day in the named places, such as ``slurm array``; at night in all others."""
    return pytest.mark.parametrize(
        ("site", "dispatch"), [case(place, day) for place in PLACES if place in places],
        indirect=["site"],
    )  # fmt: skip


def case(place: str, day: Container[str], *values: Any, marks: Sequence[Any] = ()) -> Any:
    """A parameter set of a place and other values; it is nightly unless ``day`` names the place."""
    own = [getattr(pytest.mark, name) for name in KINDS if name in place]
    own += [pytest.mark.nightly] * (place not in day)
    return pytest.param(*place.split(" ", 1), *values, marks=[*own, *marks])


@pytest.fixture(
    scope="session", params=[pytest.param(n, marks=getattr(pytest.mark, n)) for n in KINDS]
)
def site(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A running cluster, or this machine; tests that leave jobs there cancel them."""
    if request.param == "local":
        yield Local()
        return
    with session_cluster(request.param, KINDS[request.param]) as cluster:
        yield cluster


@pytest.fixture
def idle(site: Cluster) -> Iterator[Cluster]:
    """A running cluster where the test leaves no job."""
    yield site
    site.cancel_all()


@pytest.fixture
def night(site: Any, tmp_path: Path) -> Iterator[Night]:
    """A fresh workspace in an idle place."""
    found = Night(site, tmp_path / "a b")
    yield found
    found.stop(signal.SIGKILL)
