"""More than 1,000 shards: their files lie in folders by the thousand."""

from pathlib import Path

import numpy as np
from shardwise.plan import plan as plans

from tests import factories
from tests.workspace import Workspace

SHARDS = 1001
MATRIX = np.array([[1.0, 2.0], [3.0, 5.0]])
SUM = SHARDS * (MATRIX @ MATRIX)


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def test_a_run_by_a_pool(tmp_path, monkeypatch):
    """It computes just the missing shards; the sum is right, and nothing is left over."""
    workspace = Workspace.create(tmp_path / "w")
    np.save(workspace.root / "stack.npy", np.broadcast_to(MATRIX, (SHARDS, 2, 2)))
    workspace.configure(input="stack.npy", backend="numpy", shards=SHARDS, dispatch="pool",
                        materialize=False)  # fmt: skip
    planned = factories.run("plan", "--configfile", "mine.yaml", cwd=workspace.root)
    assert planned.returncode == 0, planned.stderr
    with monkeypatch.context() as context:
        context.chdir(workspace.root)
        made = factories.repeated(plans.load(Path("results/default/plan.tsv")))
    for shard in ("000/0000007", "001/0001000"):
        for suffix in ("json", "npy"):
            workspace.file(f"products/{shard}-*.{suffix}").unlink()
    done = workspace.succeed()
    assert "shardwise: 2 of 1001 shards have no products yet" in done.output
    assert (workspace.load("sum.npy") == SUM).all()
    assert names(workspace.file("products")) == {"000", "001"}
    assert len(names(workspace.file("products/000"))) == 2000
    name = made.shards["0001000"].name
    assert names(workspace.file("products/001")) == {f"{name}.npy", f"{name}.json"}
    assert not names(workspace.file("logs/multiply/001"))
    assert not factories.leftovers(workspace.file("."))
