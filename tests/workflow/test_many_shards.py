"""More than 1,000 shards: their files lie in folders by the thousand, under every dispatch."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from shardwise.plan import plan as plans

from tests import factories
from tests.workspace import Workspace

SHARDS = 1001
MATRIX = np.array([[1.0, 2.0], [3.0, 5.0]])
SUM = SHARDS * (MATRIX @ MATRIX)


def tiny(root: Path, **values: object) -> Workspace:
    """A workspace with 1,001 matrices, each a shard."""
    workspace = Workspace.create(root)
    np.save(workspace.root / "stack.npy", np.broadcast_to(MATRIX, (SHARDS, 2, 2)))
    workspace.configure(input="stack.npy", backend="numpy", shards=SHARDS, **values)
    return workspace


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def test_a_run_by_a_pool(tmp_path, monkeypatch):
    """It computes just the missing shards; the sum is right, and nothing is left over."""
    workspace = tiny(tmp_path / "w", dispatch="pool", materialize=False)
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
    verify = factories.run("verify", workspace.file("."), cwd=workspace.root)
    assert verify.returncode == 0, verify.stdout

    workspace.file(f"products/001/{name}.json").unlink()
    lost = factories.run("verify", workspace.file("."), cwd=workspace.root)
    assert lost.returncode == 3, lost.stdout
    assert f"rm -f {workspace.file('products')}/001/{name}.json," in lost.stdout


@pytest.mark.nightly  # a dry run of 2,000 jobs takes seconds
def test_a_job_per_shard(tmp_path):
    """A product as the target is made, and if lost made again, by the jobs of its shard alone."""
    workspace = tiny(tmp_path / "w", dispatch="jobs", materialize=True)
    workspace.succeed("--", "results/default/plan.tsv")
    with contextlib.chdir(workspace.root):
        name = plans.load(Path("results/default/plan.tsv")).shards["0001000"].name
    target = ("--", f"results/default/products/001/{name}.npy")
    workspace.succeed(*target)
    assert names(workspace.file("products")) == {"001"}
    assert names(workspace.file("shards")) == {"001"}
    assert workspace.file(f"logs/multiply/001/{name}.log").exists()
    assert workspace.dry_run(*target) == set()
    workspace.file(f"products/001/{name}.npy").unlink()
    assert workspace.dry_run(*target) == {"multiply 0001000"}
    assert len(workspace.dry_run()) == 2 * SHARDS - 1 + 3
