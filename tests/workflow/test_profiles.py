"""Profiles as Snakemake reads them."""

import os
import re

import numpy as np
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


def test_each_try_of_an_array_asks_for_more(workspace: Workspace, tmp_path) -> None:
    """A pretended Slurm whose tasks all end at once is asked three times; nothing is summed."""
    sbatch = f'#!/bin/sh\necho "$@" >>{tmp_path}/asked; echo 7; exit 1\n'
    others = dict.fromkeys(("squeue", "scancel", "scontrol"), "#!/bin/sh\n")
    path = processes.commands(tmp_path / "bin", sbatch=sbatch, **others)
    np.save(workspace.root / "stack.npy", np.ones((6, 4, 4)))
    workspace.configure(input="stack.npy", shards=3, dispatch="array", array_limit=2)
    done = Workspace(workspace.root, os.environ | {"PATH": path}).run(profile="slurm")
    assert done.code == 1
    asked = (tmp_path / "asked").read_text()
    tries = re.findall(r"-t (\d+) --mem (\d+) .*--array=1-3%2 ", asked)
    (minutes, memory), *more = [(int(a), int(b)) for a, b in tries]
    assert more == [(2 * minutes, 2 * memory), (3 * minutes, 3 * memory)]
    assert "try 3 of 3 follows" in done.output
