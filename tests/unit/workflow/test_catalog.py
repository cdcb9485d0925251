"""The files that Snakemake's catalog and conda read fit the project."""

import subprocess
import sys
import tomllib

import yaml

from tests import packages
from tests.factories import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_environment_of_jobs_has_the_pins_of_the_project():
    """All of them but Snakemake and its plugins, which no job starts."""
    environment = yaml.safe_load((ROOT / "workflow/envs/shardwise.yaml").read_text())
    pins = [pin for pin in PROJECT["dependencies"] if not pin.startswith("snakemake")]
    assert environment["dependencies"][-1] == {"pip": pins}


def test_snakemake_alone_lints_the_rules():
    """As the catalog does, with nothing else installed and no input there."""
    hidden = packages.others(packages.installed_with("snakemake")) - {"shardwise"}
    assert {"numpy", "msgspec", "xxhash"} <= hidden
    program = (
        "import sys; from snakemake import cli; "
        "cli.get_argument_parser(); "  # the plugins, which may need anything
        f"sys.modules.update(dict.fromkeys({hidden!r})); "
        "cli.main(['--lint', '--config', 'dispatch=array', 'input=nowhere.npy'])"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "Congratulations" in done.stderr) == (0, True), done.stderr
