"""Results of another config are never taken for this one's, whoever put them there."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import factories
from tests.workspace import Workspace

STACK = np.arange(6 * 3 * 3, dtype=np.float64).reshape(6, 3, 3)
X = {"input": "stack.npy", "shards": 2, "results": "out/x", "backend": "numpy",
     "reduce": {"ranks": 1}}  # fmt: skip
Y = X | {"product": "A.T @ A"}
SUM_X = (STACK @ STACK).sum(axis=0)
SUM_Y = (STACK.transpose(0, 2, 1) @ STACK).sum(axis=0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace that has run X to its end."""
    folder = tmp_path_factory.mktemp("standing")
    workspace = Workspace.create(folder / "w")
    np.save(folder / "stack.npy", STACK)
    # A copy of a file is another file; a link leads to the same one from every clone.
    (workspace.root / "stack.npy").symlink_to(folder / "stack.npy")
    workspace.configure(**X)
    workspace.succeed()
    return workspace


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of it, to be changed."""
    return finished.clone(tmp_path / "w")


def by_hand(workspace: Workspace, script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run one of the scripts as the README says."""
    return factories.run(script, *words, cwd=workspace.root)


def replace_stack(workspace: Workspace, stack: np.ndarray) -> None:
    """Put another stack in the place of the link to the common one."""
    (workspace.root / "stack.npy").unlink()
    np.save(workspace.root / "stack.npy", stack)


def out(workspace: Workspace, name: str) -> Path:
    """A file of the results folder."""
    return workspace.root / "out" / "x" / name


def total(workspace: Workspace) -> np.ndarray:
    """The sum that lies there."""
    return np.load(out(workspace, "sum.npy"))


def test_a_plan_by_hand_replaces_no_other_configs_plan(workspace: Workspace) -> None:
    """To look at another plan needs another folder, or --replace; no product or sum is touched.

    A run replaces it, and says so before its jobs.
    """
    before = {path: path.read_bytes() for path in out(workspace, "").rglob("*.npy")}
    warning = "out/x holds the finished results of another config."
    assert warning not in workspace.succeed("-n").output
    workspace.configure(**Y)
    assert warning in workspace.succeed("-n", "--quiet", "rules").output
    done = by_hand(workspace, "plan", "--configfile", "mine.yaml")
    assert done.returncode == 2
    assert "is the plan of another config" in done.stderr
    assert "--replace" in done.stderr
    assert by_hand(workspace, "plan", "--configfile", "mine.yaml", "--replace").returncode == 0
    assert {path: path.read_bytes() for path in before} == before
    workspace.configure(**X)
    assert by_hand(workspace, "plan", "--configfile", "mine.yaml").returncode == 2
    workspace.succeed("--", "out/x/plan.tsv")
    assert workspace.dry_run() == set()


def test_two_working_folders_may_share_a_results_folder(workspace: Workspace) -> None:
    """Inputs of the same name and time stamp, one absolute results folder."""
    shared = str(workspace.root / "shared")
    other = workspace.clone(workspace.root.with_name("two"))
    replace_stack(other, 2 * STACK)
    stamp = (workspace.root / "stack.npy").stat().st_mtime_ns
    os.utime(other.root / "stack.npy", ns=(stamp, stamp))
    for folder, factor in ((workspace, 1), (other, 4)):
        folder.configure(**X | {"results": shared, "dispatch": "pool"})
        folder.succeed("--until", "reduce")
        assert np.array_equal(np.load(Path(shared, "sum.npy")), factor * SUM_X)


def test_as_shipped_a_run_says_what_matters_in_a_few_lines(workspace: Workspace) -> None:
    """Progress, failures and last words are all there; Snakemake's own log file has the rest."""
    bad = STACK.copy()
    bad[3, 1, 2] = np.nan
    replace_stack(workspace, bad)
    shipped = ["--quiet", "rules"]  # the profiles'; of a workspace's runs none is quiet otherwise
    plan = workspace.run("-n", *shipped)
    assert "shardwise: jobs: plan 1, " in plan.output
    assert "(dry run: nothing was started)" in plan.output
    assert len(plan.output.splitlines()) <= 8, plan.output
    assert "multiply (Multiply" in workspace.run("--list-rules", *shipped).output
    done = workspace.run(*shipped)
    assert done.code == 1
    # Of a stage that takes long, progress is a line per ten seconds.
    assert len([x for x in done.output.splitlines() if " of 2 shards done" not in x]) <= 18
    assert "failed: multiply 00001: input: matrix 3 holds NaN" in done.output
    log = max((workspace.root / ".snakemake" / "log").iterdir(), key=lambda path: path.name)
    assert "rule multiply:" in log.read_text()
    assert "steps (" in log.read_text()
    assert "not finished: 1 of 2 shards" in workspace.run("-q").output, "last words are heard"
    refused = workspace.run("--quiet", "all", "--config", "product=A @ C")
    assert (refused.code, "unknown product" in refused.output) == (2, True)


def test_the_working_folder_may_be_the_results_folder(tmp_path: Path) -> None:
    """Where nothing has our names, a run marks it as its own."""
    workspace = Workspace.create(tmp_path / "w")
    (workspace.root / "mine").mkdir()
    np.save(workspace.root / "mine" / "stack.npy", STACK)
    workspace.configure(**X | {"results": ".", "input": "mine/stack.npy", "dispatch": "pool"})
    workspace.succeed()
    assert np.array_equal(np.load(workspace.root / "sum.npy"), SUM_X)
    assert workspace.dry_run() == set()
