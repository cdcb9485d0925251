"""Shardwise as a module of another workflow: from git, renamed, moved, twice, in another folder."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.workspace import Workspace

STACK = np.arange(6 * 3 * 3, dtype=np.float64).reshape(6, 3, 3)
X = {"input": "stack.npy", "shards": 2, "results": "out/x", "backend": "numpy",
     "reduce": {"ranks": 1}}  # fmt: skip
Y = X | {"product": "A.T @ A"}
SUM_X = (STACK @ STACK).sum(axis=0)
SUM_Y = (STACK.transpose(0, 2, 1) @ STACK).sum(axis=0)

HOST = """
rule mine:
    default_target: True
    input: "out/one/summary.json", "two/out/x/summary.json"
    output: "mine.txt"
    shell: "cat {input} > {output}"
"""
MODULE = """
module {name}:
    snakefile: {source}
    {prefix}
    config: {config}
use rule * from {name} as {name}_*
"""


def module(name: str, config: dict, prefix: str = "", source: str = '"workflow/Snakefile"') -> str:
    """The lines that take Shardwise as a module whose rules are called ``NAME_…``."""
    prefix = f'prefix: "{prefix}"' if prefix else ""
    return MODULE.format(name=name, config=config, prefix=prefix, source=source)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace with an input, and no config but those of the modules."""
    workspace = Workspace.create(tmp_path / "w")
    np.save(workspace.root / "stack.npy", STACK)
    return workspace


def test_a_module_from_git(workspace: Workspace, tmp_path: Path) -> None:
    """The rules come from a commit, the scripts from the package that is installed."""
    clone = Workspace.create(tmp_path / "clone").root
    name = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*name, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    source = f'gitfile("{clone}", path="workflow/Snakefile", commit="HEAD")'
    inner = 'workdir: "inner"\n'
    (workspace.root / "inner").mkdir()
    (workspace.root / "stack.npy").rename(workspace.root / "inner" / "stack.npy")
    host = workspace.root / "Snakefile"
    host.write_text(inner + module("one", X, source=source))
    assert "shardwise: done: out/x/sum.npy" in workspace.succeed().output
    assert np.array_equal(np.load(workspace.root / "inner/out/x/sum.npy"), SUM_X)
    assert workspace.dry_run() == set()
    # The receipts say what is done, not Snakemake's records of how a job was started.
    host.write_text(inner + module("one", X | {"reduce": {"ranks": 2}}, source=source))
    assert workspace.dry_run() == set()


def test_the_workflow_twice_in_one(workspace: Workspace) -> None:
    """Two modules, each with its own config: each job and each sum follow the module's own plan.

    The second module is made from the Snakefile at the root.
    """
    (workspace.root / "Snakefile").rename(workspace.root / "Snakefile.own")
    (workspace.root / "Snakefile").write_text(
        HOST
        + module("one", X | {"results": "out/one"})
        + module("two", Y, prefix="two", source='"Snakefile.own"')
    )
    sums = {"out/one/sum.npy": SUM_X, "two/out/x/sum.npy": SUM_Y}
    assert {"one_reduce", "two_reduce"} <= workspace.dry_run(*sums)
    done = workspace.succeed(*sums)
    for name, right in sums.items():
        assert np.array_equal(np.load(workspace.root / name), right)
    assert done.output.count("shardwise: done: what was asked for") == 2
