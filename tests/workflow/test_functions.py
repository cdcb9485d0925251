"""A user's own function through the whole workflow: the seismic example, and one that fails."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shardwise.bins import BinnedSum, rounded

from tests.factories import SCRIPTS
from tests.workspace import Workspace

FUNCTION = """
def own(xp, block):
    if (block == 7).any():
        raise ValueError("seven")
    return block + 1
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A fresh copy of the project."""
    return Workspace.create(tmp_path / "w")


def test_the_seismic_example(workspace: Workspace) -> None:
    """Its records are the propagator's, and an edited file computes all of them again, once."""
    folder = workspace.root / "examples" / "seismic"
    command = [sys.executable, str(folder / "make_input.py")]
    subprocess.run(command, check=True, env={"PYTHONPATH": str(SCRIPTS)})
    config = ("--configfile", "examples/seismic/config.yaml")
    done = workspace.run(*config)
    assert done.code == 0, done.output
    assert "trying examples/seismic/propagator.py:shot on the first matrix" in done.output

    results = workspace.root / "results" / "seismic"
    records = np.concatenate([np.load(p) for p in sorted((results / "products").glob("*.npy"))])
    alone = (
        "import numpy as np, propagator as p; "
        "np.save('alone.npy', p.shot(np, np.load('input.npy')[[0, 17]]))"
    )
    subprocess.run([sys.executable, "-c", alone], check=True, cwd=folder)
    assert records.shape == (24, 600, 121)
    assert records[[0, 17]].tobytes() == np.load(folder / "alone.npy").tobytes()
    expected = BinnedSum(np, (600, 121), records.dtype.name)
    expected.add(records)
    total = np.load(results / "sum.npy")
    assert total.tobytes() == rounded(expected.planes(), records.dtype.name).tobytes()
    np.testing.assert_allclose(total, records.sum(axis=0, dtype="f8"), atol=1e-12)
    assert json.loads((results / "summary.json").read_bytes())["proven"] is False

    again = workspace.run("--dry-run", *config)
    assert again.jobs == set()
    assert "trying" not in again.output
    with open(folder / "propagator.py", "a") as file:
        file.write("# edited\n")
    shards = {f"multiply {shard:05}" for shard in range(4)}
    last = {"ledger", "reduce", "report"}
    assert workspace.run("--dry-run", *config).jobs == {"plan"} | shards | last


def test_a_function_that_fails_costs_its_shard(workspace: Workspace) -> None:
    """On the first matrix nothing starts; on a later one the last words say where and why."""
    stack = np.zeros((6, 2, 3))
    stack[[0, 3]] = 7
    np.save(workspace.root / "stack.npy", stack)
    (workspace.root / "mine.py").write_text(FUNCTION)
    workspace.configure(input="stack.npy", product="mine.py:own", shards=3, keep="sum")
    refused = workspace.run()
    assert refused.code == 2
    assert "product: mine.py:own failed on matrix 0: ValueError: seven" in refused.output
    assert "shardwise/functions.py" not in refused.output
    assert not workspace.file("").exists()

    stack[0] = 0
    np.save(workspace.root / "stack.npy", stack)
    done = workspace.run("--retries", "0")
    assert done.code == 1
    words = done.output[done.output.index("shardwise: not finished: 2 of 3 shards") :]
    why = "product: mine.py:own failed on matrices 2 to 3: ValueError: seven"
    assert f"failed: multiply 00001: {why}" in words
    assert 'mine.py", line 4, in own' in done.output
