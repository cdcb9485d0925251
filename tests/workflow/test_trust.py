"""Under snakemake: a config that is more than data is refused, damage is found and repaired."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A fresh copy of the project."""
    return Workspace.create(tmp_path / "w")


def verify(workspace: Workspace) -> tuple[int, str]:
    """The exit code of an audit, and its last line."""
    done = subprocess.run(
        [sys.executable, "scripts/verify.py"], cwd=workspace.root, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()[-1]


def test_a_config_that_is_more_than_data_is_refused(workspace: Workspace) -> None:
    """A template, and equal keys, in any file that Snakemake has read: exit 2, and no job."""
    template = '__use_yte__: true\nshards: ?2 + 1\nresults: "r"\n'
    twice = "shards: 2\nkeep: sum\nshards: 3\n"
    for text, said in ((template, "__use_yte__ asks"), (twice, "in line 1 and again in line 3")):
        (workspace.root / "mine.yaml").write_text(text)
        done = workspace.run()
        assert done.code == 2, done.output
        assert f"{workspace.root}/mine.yaml: " in done.output
        assert said in done.output
    (workspace.root / "mine.yaml").unlink()
    shipped = workspace.root / "config.yaml"
    shipped.write_text(shipped.read_text() + "shards: 3\n")
    done = workspace.run("--dry-run")
    assert (done.code, "the key shards stands in line" in done.output) == (2, True)
    assert not workspace.file("").exists()


def test_damage_is_found_and_repaired(workspace: Workspace) -> None:
    """The last line of the audit holds the command after which snakemake makes all whole."""
    (workspace.root / ".git").mkdir()  # no clone that git could read
    workspace.configure(shards=3, synthetic={"matrices": 6, "dim": 8})
    assert workspace.run().code == 0
    code, line = verify(workspace)
    assert (code, line.startswith("results/default: whole: 3 shards, ")) == (0, True), line
    for name in ("products/00001.npy", "shards/00002.npy", "input.npy", "sum.npy"):
        path = workspace.file(name)
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
    code, line = verify(workspace)
    assert (code, "1 of 3 shards damaged (00001)" in line) == (3, True), line
    repair = line.partition("repair: ")[2].removesuffix(", then snakemake as before")
    assert shlex.split(repair)[:2] == ["rm", "-f"]
    subprocess.run(["bash", "-c", repair], cwd=workspace.root, check=True)
    done = workspace.run()
    assert done.code == 0, done.output
    code, line = verify(workspace)
    assert (code, line.startswith("results/default: whole: 3 shards, ")) == (0, True), line
    summary = json.loads(workspace.file("summary.json").read_text())
    assert sum(device["shards"] for device in summary["made_by"]["devices"]) == 3
