"""Hooks and fixtures for all tests."""

import compileall
import os
import re

import pytest
from shardwise.devices import choose
from shardwise.records import failures
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.factories import SCRIPTS
from tests.faults.table import (  # noqa: F401 - pytest finds them here
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    tried,
)
from tests.places import idle, night, site  # noqa: F401 - and these


class ByFileAndSite(LoadFileScheduling):
    """One worker takes all tests of a file, or of a scheduler in a folder, which it starts once.

    Tests of a scheduler are the longest and mostly wait, so every second worker begins at the other
    end of the list, with tests that compute. The workers meet at whole local runs. These share
    nothing and are taken one by one, so that no worker is left with many.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        own = {"slurm", "grid_engine", "local"} & set(re.split(r"[\[\]-]", test))
        if "local" in own or file == "tests/workflow/test_local.py":
            return nodeid
        return " ".join([*file.split("/")[:2], *own]) if own else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Spread the tests over processes, as ``make test`` asks for."""
    return ByFileAndSite(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _bytecode():
    """Compile the scripts once, and let the processes of the tests keep their bytecode."""
    compileall.compile_dir(SCRIPTS, quiet=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_leases(tmp_path_factory):
    """Keep the leases of this process apart: it holds its GPU, which its jobs need too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "LEASES", tmp_path_factory.mktemp("own") / "leases")
        yield


@pytest.fixture(autouse=True)
def _own_run():
    """Let no test's run go on in the next test: a process by hand keeps its run's name."""
    yield
    os.environ.pop(failures.RUN, None)
