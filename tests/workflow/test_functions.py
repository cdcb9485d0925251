"""A user's own function through the whole workflow: the seismic example."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.factories import SCRIPTS
from tests.workspace import Workspace


@pytest.mark.nightly  # by day it is planned, its physics are tried, and other functions run
@pytest.mark.parametrize("dispatch", ["jobs", "pool", "mpi"])
def test_the_seismic_example(workspace: Workspace, dispatch: str) -> None:
    """It runs as it is, and an edited file computes all of it again, once."""
    folder = workspace.root / "examples" / "seismic"
    command = [sys.executable, str(folder / "make_input.py")]
    subprocess.run(command, check=True, env={"PYTHONPATH": str(SCRIPTS)})
    config = ("--configfile", "examples/seismic/config.yaml", "--config", f"dispatch={dispatch}")
    done = workspace.succeed(*config)
    assert "trying examples/seismic/propagator.py:shot on the first matrix" in done.output

    results = workspace.root / "results" / "seismic"
    records = np.concatenate([np.load(p) for p in sorted((results / "products").glob("*.npy"))])
    assert records.shape == (24, 600, 121)
    total = np.load(results / "sum.npy")
    np.testing.assert_allclose(total, records.sum(axis=0, dtype="f8"), atol=1e-12)
    assert json.loads((results / "summary.json").read_bytes())["proven"] is False

    again = workspace.run("--dry-run", *config)
    assert again.jobs == set()
    assert "trying" not in again.output
    with open(folder / "propagator.py", "a") as file:
        file.write("# edited\n")
    shards = {f"multiply {i:05}" for i in range(4)} if dispatch == "jobs" else {dispatch}
    last = {"ledger", "reduce", "report"}
    assert workspace.run("--dry-run", *config).jobs == {"plan"} | shards | last
