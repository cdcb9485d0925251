"""Shardwise as a module of another workflow: from git, renamed, moved, twice, in another folder."""

import subprocess
from pathlib import Path

import numpy as np

from tests.workspace import Workspace

STACK = np.arange(6 * 3 * 3, dtype=np.float64).reshape(6, 3, 3)
ONE = {"input": "stack.npy", "shards": 2, "results": "out/x", "backend": "numpy",
       "reduce": {"ranks": 1}}  # fmt: skip
TWO = ONE | {"product": "A.T @ A"}
SUMS = {"out/x/sum.npy": (STACK @ STACK).sum(axis=0),
        "two/out/x/sum.npy": (STACK.transpose(0, 2, 1) @ STACK).sum(axis=0)}  # fmt: skip

HOST = """
workdir: "inner"
rule mine:
    default_target: True
    input: "out/x/summary.json", "two/out/x/summary.json"
    output: "mine.txt"
    shell: "cat {{input}} > {{output}}"
module one:
    snakefile: gitfile("{clone}", path="workflow/Snakefile", commit="HEAD")
    config: {one}
use rule * from one as one_*
module two:
    snakefile: "Snakefile.own"
    prefix: "two"
    config: {two}
use rule * from two as two_*
"""


def test_the_workflow_twice_in_one(tmp_path: Path) -> None:
    """Two modules, each with its own config: each job and each sum follow the module's own plan.

    The rules of one come from a commit, its scripts from the package that is installed. The other
    is made from the Snakefile at the root, and writes elsewhere.
    """
    workspace, clone = Workspace.create(tmp_path / "w"), Workspace.create(tmp_path / "clone").root
    name = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*name, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    (workspace.root / "inner").mkdir()
    np.save(workspace.root / "inner" / "stack.npy", STACK)
    host = workspace.root / "Snakefile"
    host.rename(workspace.root / "Snakefile.own")
    host.write_text(HOST.format(clone=clone, one=ONE, two=TWO))
    assert {"one_reduce", "two_reduce", "mine"} <= workspace.dry_run()
    done = workspace.succeed(*SUMS)
    for file, right in SUMS.items():
        assert np.array_equal(np.load(workspace.root / "inner" / file), right)
    assert done.output.count("shardwise: done: what was asked for") == 2
    # The receipts say what is done, not Snakemake's records of how a job was started.
    host.write_text(HOST.format(clone=clone, one=ONE | {"reduce": {"ranks": 2}}, two=TWO))
    assert workspace.dry_run(*SUMS) == set()
