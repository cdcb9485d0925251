"""Profiles as Snakemake reads them."""

import re

import yaml
from shardwise.workflow import recipe

from tests.workspace import REPO, Workspace

SLURM = (REPO / "profiles/slurm/config.yaml").read_text()
UGE = (REPO / "profiles/uge/config.yaml").read_text()
CHOICES = [yaml.safe_load(text) for text in re.findall(r'^ *(?:# )?uge_\w+: (".*?")', UGE, re.M)]


def test_every_choice_of_the_uge_profile_reaches_qsub(workspace: Workspace) -> None:
    """Snakemake evaluates resources as Python if it can, but leaves these as they are.

    All their placeholders are known; filled in, they are plain words.
    """
    assert len(CHOICES) > 10
    for text in CHOICES:
        words = recipe.site_words({"uge_x": text, "mem_mb": 1000, "runtime": 10, "tasks": 2})
        assert words
        assert "{" not in "".join(words)
    profile = yaml.safe_load(UGE)
    profile["default-resources"] = {f"uge_{i:02}": text for i, text in enumerate([*CHOICES, ""])}
    (workspace.root / "profiles/uge/config.yaml").write_text(yaml.safe_dump(profile))
    workspace.configure(shards=1)
    done = workspace.succeed("--dry-run", profile="uge")
    for i, text in enumerate(CHOICES):
        assert f"uge_{i:02}={text}" in done.output


def test_the_memory_of_a_node_follows_from_the_gpus_asked_for(workspace: Workspace) -> None:
    """Under ``pool`` it is the memory of one task times the number of GPUs."""
    workspace.configure(shards=4, dispatch="pool")
    asked = {}
    for gres in ("gpu:1", "gpu:a100:4"):
        words = ("--set-resources", f"pool:gres={gres}")
        done = workspace.succeed("--dry-run", *words, profile="slurm")
        asked[gres] = int(re.search(r"rule pool:.*?mem_mb=(\d+)", done.output, re.S)[1])
    assert 4 * (asked["gpu:1"] - 1) <= asked["gpu:a100:4"] <= 4 * asked["gpu:1"]


def test_what_a_profile_asks_for_in_vain_is_told_before_any_job(workspace: Workspace) -> None:
    """Unknown names, with the nearest known one; GPUs under NumPy; but no key that it offers."""
    workspace.configure(shards=1, backend="numpy")
    profile = yaml.safe_load(SLURM)
    offered = re.findall(r'^ +# (\w+): ["\d]', SLURM.partition("default-resources:")[2], re.M)
    profile["default-resources"] |= dict.fromkeys(offered, 1) | {"slurm_partion": "gpu", "zzz": 1}
    profile["set-resources"] |= {"mutliply": {"tasks": 1}}
    (workspace.root / "profiles/slurm/config.yaml").write_text(yaml.safe_dump(profile))
    done = workspace.succeed("--dry-run", profile="slurm")
    assert re.findall("shardwise: profile: (.*)", done.output) == [
        "set-resources: mutliply is not a rule; did you mean multiply?",
        "default-resources: slurm_partion is not a known resource; did you mean slurm_partition?",
        "set-resources, multiply: gres: gpu:1 asks for GPUs, and backend: numpy uses none; remove "
        "that line, or set backend: cupy in the config",
    ]
    workspace.configure(shards=1, dispatch="pool", backend="numpy")
    done = workspace.succeed("--dry-run", profile="uge")
    (told,) = re.findall("shardwise: profile: (.*)", done.output)
    assert told.startswith("set-resources, pool: uge_gpu: -l gpu=1 asks for GPUs")
    assert "Warning" not in done.output  # of Python, about Snakemake
