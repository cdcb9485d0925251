"""Profiles as Snakemake reads them."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from shardwise.workflow import preflight

from tests import processes
from tests.workspace import REPO, Workspace

UGE = (REPO / "profiles/uge/config.yaml").read_text()
CHOICES = [yaml.safe_load(text) for text in re.findall(r'^ *(?:# )?uge_\w+: (".*?")', UGE, re.M)]


def test_every_choice_of_the_uge_profile_reaches_qsub() -> None:
    """All their placeholders are known; filled in, they are plain words."""
    assert len(CHOICES) > 10
    for text in CHOICES:
        words = preflight.site_words({"uge_x": text, "mem_mb": 1000, "runtime": 10, "tasks": 2})
        assert words
        assert "{" not in "".join(words)


def test_the_memory_of_a_node_follows_from_the_gpus_asked_for(workspace: Workspace) -> None:
    """Under ``pool`` it is the memory of one task times the number of GPUs."""
    workspace.configure(shards=4, dispatch="pool")
    asked = {}
    for gres in ("gpu:1", "gpu:a100:4"):
        words = ("--set-resources", f"pool:gres={gres}")
        done = workspace.succeed("--dry-run", *words, profile="slurm")
        asked[gres] = int(re.search(r"rule pool:.*?mem_mb=(\d+)", done.output, re.S)[1])
    assert 4 * (asked["gpu:1"] - 1) <= asked["gpu:a100:4"] <= 4 * asked["gpu:1"]


@pytest.mark.parametrize(("profile", "client"), [("slurm", "sbatch"), ("uge", "qsub")])
def test_each_try_of_an_array_asks_for_more(workspace, tmp_path, profile, client):
    """A pretended scheduler, whose tasks all fail, is asked in the words of array_words.txt."""
    note = f'case "$*" in *-sync*|*--wait*) echo {client} "$@" >>{tmp_path}/asked;; esac'
    scripts = dict.fromkeys(("squeue", "scancel", "qdel"), "#!/bin/sh\n")
    scripts |= {"qstat": "#!/bin/sh\necho '<job_info/>'\n"}
    scripts |= {client: f"#!/bin/sh\n{note}; echo 7; exit 1\n"}
    env = os.environ | {"PATH": processes.commands(tmp_path / "bin", **scripts)}
    np.save(workspace.root / "stack.npy", np.ones((6, 4, 4)))
    workspace.configure(input="stack.npy", shards=3, dispatch="array", array_limit=2)
    done = Workspace(workspace.root, env).run(profile=profile)
    assert done.code == 1
    asked = re.sub(r"\S+\.sh\b", "TASK", (tmp_path / "asked").read_text())
    asked = re.sub(r"(?<=-v )\S+", "VARIABLES", re.sub(r"sw-\S+", "NAME", asked))
    golden = Path(__file__).with_name("array_words.txt").read_text().splitlines(keepends=True)
    assert asked == "".join(line for line in golden if line.startswith(client))
    assert "try 3 of 3 follows" in done.output
