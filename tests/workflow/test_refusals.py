"""What Snakemake would answer with a traceback or 1 is told with 2; of plans: bad_inputs.py."""

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


@pytest.mark.parametrize(("results", "profile", "options", "words"), [
    # Snakemake itself would wait forever for a core.
    ("r", "local", ["--cores", "0"], "no job could start with 0 cores or jobs"),
    # It would take the last one, and compute another problem.
    ("r", "local", ["-n", "--configfile", "config.yaml"], "--configfile is given more than once"),
    ("r", "local", ["-n", "-Ckeep=sum", "-Cresults=s"], "--config is given more than once"),
    ("r", "local", ["-Cdispatch=array"], "a profile that submits to Slurm or Grid Engine"),
    ("r", "local", ["-n", "-R", "pool"], "no rule pool; name one of its rules: plan, synthe"),
    ("a$b", "slurm", ["-n"], "results 'a$b' holds '$', but schedulers pass names to a shell"),
    ("a$b", "uge", ["-n"], "results 'a$b' holds '$', but schedulers pass names to a shell"),
])  # fmt: skip
def test_a_run_is_refused(workspace: Workspace, results, profile, options, words) -> None:
    """What no run can begin with, or would mean something else than was asked for."""
    workspace.configure(**SMALL, results=results)
    refused(workspace.run(*options, profile=profile, timeout=60), words)
    if "$" in results:  # on this machine it is just a name
        assert workspace.run("-n").code == 0


def test_a_job_that_leaves_no_product_has_failed(workspace: Workspace) -> None:
    """Whatever the exit code of a function: Snakemake only reports that files are missing."""
    code = "import os\ndef f(xp, x):\n    return os._exit(0) if os.getenv('SHARDWISE_RUN') else x\n"
    (workspace.root / "f.py").write_text(code)
    workspace.configure(**SMALL, product="f.py:f")
    assert "  failed: multiply 00000, multiply 00001: it left no message" in workspace.run().output


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
