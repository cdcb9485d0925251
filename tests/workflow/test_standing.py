"""Results of another config are never taken for this one's, whoever put them there."""

import os
import shlex
import subprocess

import numpy as np
import pytest

from tests.workflow.conftest import OWN, STACK
from tests.workspace import Workspace


@pytest.fixture
def workspace(finished: Workspace, tmp_path) -> Workspace:
    """A clone of `finished`, to be changed."""
    return finished.clone(tmp_path / "a clone")


def test_a_run_says_that_it_replaces_the_results_of_another_config(workspace: Workspace) -> None:
    """It does so before its jobs, in a dry run too."""
    warning = "out holds the finished results of another config."
    assert warning not in workspace.succeed("-n").output
    workspace.configure(**OWN, product="A.T @ A")
    assert warning in workspace.succeed("-n", "--quiet", "rules").output


def test_a_run_in_another_folder_names_where_it_was_typed(workspace: Workspace) -> None:
    """Its last words are on the results there, and the command that continues it works."""
    inner = workspace.root / "inner"
    inner.mkdir()
    (inner / "stack").symlink_to(workspace.root / "stack")
    typed = Workspace(workspace.root, os.environ | {"PWD": str(workspace.root)})
    assert "shardwise: done: out/sum.npy" in typed.succeed("--directory", "inner").output
    command = (inner / "out" / "logs" / "command.txt").read_text()
    assert command.startswith(f"cd {shlex.quote(str(workspace.root))} && ")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "every shard has its product" in done.stderr


def test_as_shipped_a_run_says_what_matters_in_a_few_lines(workspace: Workspace) -> None:
    """Progress, failures and last words are all there; Snakemake's own log file has the rest."""
    bad = STACK.copy()
    bad[5, 1, 2] = np.nan
    np.save(workspace.root / "bad.npy", bad)
    workspace.configure(**OWN | {"input": "bad.npy", "shards": 2, "results": "mine"})
    shipped = ["--quiet", "rules"]  # as in the profiles; other runs here are not quiet
    plan = workspace.run("-n", *shipped)
    assert "shardwise: jobs: plan 1, " in plan.output
    assert "(dry run: nothing was started)" in plan.output
    assert len(plan.output.splitlines()) <= 7, plan.output
    assert "multiply (Multiply" in workspace.run("--list-rules", *shipped).output
    done = workspace.run(*shipped)
    assert done.code == 1
    # Lines of progress do not count: a stage that takes long prints one per ten seconds.
    assert len([x for x in done.output.splitlines() if " of 2 shards done" not in x]) <= 17
    assert "failed: multiply 00001: input: matrix 5 holds NaN" in done.output
    log = max((workspace.root / ".snakemake" / "log").iterdir(), key=lambda path: path.name)
    assert "rule multiply:" in log.read_text()
    assert "steps (" in log.read_text()
    assert "not finished: 1 of 2 shards" in workspace.run("-q").output, "last words are heard"
    refused = workspace.run("--quiet", "all", "--config", "product=A @ C")
    assert (refused.code, "unknown product" in refused.output) == (2, True)
