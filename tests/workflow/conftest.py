"""Workspaces of the tests of whole runs."""

from pathlib import Path

import numpy as np
import pytest

from tests.factories import save
from tests.workspace import Workspace

OWN = {"input": "stack", "shards": 4, "results": "out"}
STACK = np.arange(8 * 3 * 3, dtype="f8").reshape(8, 3, 3)
SLOW = """
import time
from pathlib import Path

def slow(xp, block):
    moment = "computed" if Path("results").exists() else "tried"
    Path(moment).touch()
    while not Path(f"{moment}-on").exists():
        time.sleep(0.1)
    return block
"""
"""A function that reports the moment when it is called, and waits until it may go on."""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A fresh copy of the project."""
    return Workspace.create(tmp_path / "w")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace that has run OWN to its end, on a folder of eight matrices, a job per shard.

    The matrices are links, so that a clone has the same files: to a run, a copy is another file.
    """
    folder = tmp_path_factory.mktemp("finished")
    workspace = Workspace.create(folder / "a clone")
    (workspace.root / "stack").mkdir()
    for i, matrix in enumerate(STACK):
        path = save(folder / "stack" / f"{i}.npy", matrix)
        (workspace.root / "stack" / path.name).symlink_to(path)
    workspace.configure(**OWN)
    workspace.succeed()
    return workspace
