"""The files that Snakemake's catalog, conda and citation tools read fit the project."""

import shutil
import subprocess
import sys
import tomllib

import pytest
import shardwise
import yaml

from tests import packages
from tests.factories import ROOT, nightly

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def content(name):
    """A file in YAML."""
    return yaml.safe_load((ROOT / name).read_text())


def test_the_environment_of_jobs_has_the_pins_of_the_project():
    """All of them but Snakemake and its plugins, which no job starts."""
    (*_, packages) = content("workflow/envs/shardwise.yaml")["dependencies"]
    pins = [pin for pin in PROJECT["dependencies"] if not pin.startswith("snakemake")]
    assert packages == {"pip": pins}


@pytest.mark.parametrize("dispatch", ["array", *map(nightly, ("jobs", "pool", "mpi"))])
def test_snakemake_alone_lints_the_rules(dispatch):
    """As the catalog does, with nothing else installed and no input there."""
    hidden = packages.others(packages.installed_with("snakemake")) - {"shardwise"}
    assert {"numpy", "msgspec", "xxhash"} <= hidden
    program = (
        "import sys; from snakemake import cli; "
        "cli.get_argument_parser(); "  # the plugins, which may need anything
        f"sys.modules.update(dict.fromkeys({hidden!r})); "
        f"cli.main(['--lint', '--config', 'dispatch={dispatch}', 'input=nowhere.npy'])"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "Congratulations" in done.stderr) == (0, True), done.stderr


def test_the_catalog_and_citations_find_what_they_ask_for(tmp_path):
    """A config that is a file, not a link into the clone, its README, a flag, and the version."""
    copied = shutil.copytree(ROOT / "config", tmp_path / "config") / "config.yaml"
    assert not copied.is_symlink()
    assert copied.read_bytes() == (ROOT / "config.yaml").read_bytes()
    assert (ROOT / "config" / "README.md").is_file()
    usage = content(".snakemake-workflow-catalog.yml")["usage"]
    assert usage["software-stack-deployment"] == {"conda": True}
    option, profile = usage["mandatory-flags"]["flags"].split()
    assert option == "--profile"
    assert (ROOT / profile / "config.yaml").is_file()
    citation = content("CITATION.cff")
    assert (citation["version"], citation["license"]) == (shardwise.__version__, PROJECT["license"])
