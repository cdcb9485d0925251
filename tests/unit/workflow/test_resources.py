"""What jobs are given: memory, and the environment that conda makes for them."""

import tomllib

import yaml
from shardwise.plan import plan
from shardwise.workflow.run import Run

from tests import factories
from tests.factories import ROOT, save, stack


def test_no_list_of_files_is_read_for_the_memory_of_jobs(tmp_path):
    """Each job parses the rules again, and there may be a million files."""
    for i in range(6):
        save(tmp_path / f"m{i}.npy", stack((3, 3), seed=i))
    made = factories.plan(tmp_path, input=str(tmp_path / "*.npy"), shards=2)
    run = object.__new__(Run)
    run.plan, run.reduce, run.dispatch = plan.load(made.results.plan), {"ranks": 2}, "array"
    made.results.sources.unlink()
    for rule in ("shard", "synthesize", "reduce", "multiply"):
        assert run.mib(rule)(None, 2) == 2 * run.mib(rule)(None, 1) > 0


def test_the_environment_of_jobs_has_the_pins_of_the_project():
    """All of them but Snakemake and its plugins, which no job starts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((ROOT / "workflow/envs/shardwise.yaml").read_text())
    pins = [pin for pin in project["dependencies"] if not pin.startswith("snakemake")]
    assert environment["dependencies"][-1] == {"pip": pins}
