"""Errors that would end Snakemake with a traceback or 1 before our rules: told, with exit 2.

What the plan refuses is in tests/hostile/bad_inputs.py.
"""

import subprocess
import sys

import numpy as np
import pytest

from tests import factories
from tests.workspace import Finished, Workspace

SMALL = {"synthetic": {"matrices": 4, "dim": 4}, "shards": 2, "backend": "numpy"}


def refused(done: Finished, words: str) -> None:
    """Snakemake has ended with 2 and these words, and without a traceback."""
    assert (done.code, words in done.output) == (2, True), done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("file", "content", "words"), [
    ("mine.yaml", b"reduce:\n\tranks: 3\n", "line 2: found character"),
    ("config.yaml", b"shards: 3\ninput: [a.npy\n", "line 3: expected ',' or ']'"),
])  # fmt: skip
def test_a_config_file_is_refused_by_its_line(workspace, file, content, words):
    """Both are files that Snakemake reads first; tests/unit/plan tries others without it."""
    (workspace.root / file).write_bytes(content)
    refused(workspace.run("--dry-run"), words)
    refused(workspace.run("--dry-run", "--configfile", "none.yaml"), "none.yaml does not exist")
    assert not (workspace.root / "results").exists()


def test_a_run_without_a_core_is_refused(workspace: Workspace) -> None:
    """Snakemake itself would wait forever for a core."""
    workspace.configure(**SMALL)
    refused(workspace.run("--cores", "0", timeout=60), "no job could start with 0 cores or jobs")


@pytest.mark.parametrize(("own", "words"), [
    (["--configfile", "config.yaml"], "--configfile is given more than once"),
    (["-Ckeep=sum", "-Cresults=other"], "--config is given more than once"),
])  # fmt: skip
def test_an_option_given_twice_drops_no_config(workspace: Workspace, own, words) -> None:
    """Snakemake itself takes the last one, and would compute another problem."""
    workspace.configure(**SMALL)
    refused(workspace.run("--dry-run", *own), words)


def test_names_for_no_scheduler_are_refused_in_a_dry_run(workspace: Workspace) -> None:
    """Under every profile that submits; on this machine they are just names."""
    workspace.configure(**SMALL, results="a$b")
    for profile in ("slurm", "uge"):
        done = workspace.run("--dry-run", profile=profile)
        refused(done, "results 'a$b' holds '$', but schedulers pass names to a shell")
    assert workspace.run("--dry-run").code == 0


HOME = ("env", "-u", "XDG_CACHE_HOME", "-u", "XDG_CONFIG_HOME", "-u", "XDG_DATA_HOME")
"""Put before a HOME that cannot be written, as on the nodes of some clusters."""


def test_a_run_needs_no_home(tmp_path):
    """As in a container; names of files may have letters beyond ASCII."""
    workspace = Workspace.create(tmp_path / "w", before=(*HOME, "HOME=/proc/nowhere"))
    factories.save(workspace.root / "größe.npy", factories.stack((4, 8, 8)))
    own = {"input": "größe.npy", "backend": "numpy", "dispatch": "pool", "reduce": {"ranks": 2}}
    workspace.configure(**own, shards=2)
    assert "Traceback" not in workspace.succeed().output
    assert np.isfinite(workspace.load("sum.npy")).all()


def test_the_plugin_leaves_the_choice_of_our_package_to_the_snakefile() -> None:
    """When Snakemake starts, nothing of ours is imported but the plugin itself."""
    program = (
        "import sys\n"
        "from snakemake.cli import get_argument_parser\n"
        "get_argument_parser()\n"
        "assert 'snakemake_logger_plugin_shardwise' in sys.modules\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'shardwise']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
