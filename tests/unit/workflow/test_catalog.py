"""The environment that conda makes for jobs fits the project."""

import tomllib

import yaml

from tests.factories import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_environment_of_jobs_has_the_pins_of_the_project():
    """All of them but Snakemake and its plugins, which no job starts."""
    environment = yaml.safe_load((ROOT / "workflow/envs/shardwise.yaml").read_text())
    pins = [pin for pin in PROJECT["dependencies"] if not pin.startswith("snakemake")]
    assert environment["dependencies"][-1] == {"pip": pins}
