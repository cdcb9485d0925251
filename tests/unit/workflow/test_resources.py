"""What jobs are given: memory, and the environment that conda makes for them."""

import tomllib

import pytest
import yaml
from shardwise.plan import plan as plan_file
from shardwise.workflow import run as runs
from shardwise.workflow.run import Run

from tests import factories
from tests.factories import ROOT, save, stack


def test_no_list_of_files_is_read_for_the_memory_of_jobs(tmp_path):
    """Each job parses the rules again, and there may be a million files."""
    for i in range(6):
        save(tmp_path / f"m{i}.npy", stack((3, 3), seed=i))
    made = factories.plan(tmp_path, input=str(tmp_path / "*.npy"), shards=2)
    run = object.__new__(Run)
    run.plan, run.reduce, run.dispatch = plan_file.load(made.results.plan), {"ranks": 2}, "array"
    made.results.sources.unlink()
    for rule in ("shard", "synthesize", "reduce", "multiply"):
        assert run.mib(rule)(None, 2) == 2 * run.mib(rule)(None, 1) > 0


@pytest.mark.parametrize(("words", "asked", "counted"), [
    ({"uge_gpu": "", "mem_mb": "4000"}, 1, 0),
    ({"gres": "gpu:4"}, 4, 4),
    ({"gres": "gpu:1g.10gb:7"}, 7, 7),
    ({"gres": "nvme:100,gpu:h200:2,gpu:a100:2"}, 4, 4),
    ({"gres": "gres/gpu:8(S:0-1)"}, 8, 8),
    ({"gres": "shard:4"}, 1, 0),
    ({"uge_gpu": "-pe smp 8 -l gpu=2,gpu_mem=40G -l gpu_type=H200"}, 2, 2),
    ({"uge_cards": "-l mem_free=4G,ngpus=3", "uge_queue": "-q gpu.q"}, 3, 3),
    ({"gpu": "8", "tasks": "8", "nodes": "2"}, 4, 0),
    ({"gres": "gpu:4", "tasks": "2", "nodes": "2"}, 4, 4),
    ({"uge_gpu": "-l gpu=1", "tasks": "3"}, 3, 1),
    ({"tasks": "2*attempt", "nodes": "attempt"}, 1, 0),
])  # fmt: skip
def test_how_many_devices_a_node_is_asked_for(words, asked, counted):
    """From the profile's words for Slurm and for Grid Engine; one if they name none."""
    assert (runs.asked(words)[0], runs.counted(words)) == (asked, counted)


def test_the_environment_of_jobs_has_the_pins_of_the_project():
    """All of them but Snakemake and its plugins, which no job starts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((ROOT / "workflow/envs/shardwise.yaml").read_text())
    pins = [pin for pin in project["dependencies"] if not pin.startswith("snakemake")]
    assert environment["dependencies"][-1] == {"pip": pins}
