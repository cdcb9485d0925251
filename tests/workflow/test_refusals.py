"""What would end Snakemake with a traceback, or with 1, before our rules: told, with exit 2."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import factories
from tests.factories import nightly
from tests.workspace import Finished, Workspace

SMALL = {"synthetic": {"matrices": 4, "dim": 4}, "shards": 2, "backend": "numpy"}

BAD_CONFIGS = {
    "mine.yaml": [
        (b"reduce:\n\tranks: 3\n", "line 2: holds a tab"),
        (b"shards: 010\n", "line 1: shards: YAML reads 010 as the number 8"),
        (None, "does not exist"),
    ],
    "config.yaml": [(b"shards: 3\ninput: [a.npy\n", "line 3: expected ',' or ']'")],
}
"""Those that snakemake reads; tests/unit/plan has the others without it."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A small run that is done."""
    workspace = Workspace.create(tmp_path_factory.mktemp("refusals") / "a clone")
    workspace.configure(**SMALL)
    done = workspace.run()
    assert done.code == 0, done.output
    return workspace


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of it, to be damaged."""
    return finished.clone(tmp_path / "a clone")


def refused(done: Finished, words: str) -> None:
    """Snakemake has ended with 2 and these words, and without a traceback."""
    assert (done.code, words in done.output) == (2, True), done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [(file, *case) for file, cases in BAD_CONFIGS.items() for case in cases],
)
def test_a_config_file_is_refused_by_its_line(tmp_path, file, content, words):
    """By snakemake, as the user's file and as that of the Snakefile; by hand the same words."""
    workspace = Workspace.create(tmp_path / "w")
    (workspace.root / file).unlink(missing_ok=True)
    if content is not None:
        (workspace.root / file).write_bytes(content)
    own = ["--configfile", file] if file == "mine.yaml" and content is None else []
    done = workspace.run("--dry-run", *own)
    refused(done, words)
    assert not (workspace.root / "results").exists()
    by_hand = factories.run("plan", "--configfile", file, cwd=workspace.root)
    assert by_hand.returncode == 2
    (line,) = [line for line in done.output.splitlines() if words in line]
    line = line.replace(f"{workspace.root}/", "")
    where = line.partition("config file ")[2].partition(words)[0]
    assert f"{where}{words}" in by_hand.stderr.replace(f"{workspace.root}/", "")


def test_a_folder_in_partial_is_named_before_any_job(workspace: Workspace) -> None:
    """It is never removed, and no job is tried that could not end."""
    strange = workspace.file("partial/old")
    strange.mkdir(parents=True)
    refused(workspace.run("--forceall"), "partial/old: no reduce of ours writes this")
    assert strange.is_dir()
    strange.rmdir()
    done = workspace.run("--forcerun", "reduce")
    assert done.code == 0, done.output
    assert not strange.parent.exists()


def test_ranks_beyond_the_work_are_refused_in_a_dry_run(tmp_path: Path) -> None:
    """Whatever would start them; the figures are of the sum."""
    workspace = Workspace.create(tmp_path / "w")
    workspace.configure(**SMALL, reduce={"ranks": 1_000_000})
    refused(
        workspace.run("--dry-run", profile="slurm"),
        "reduce.ranks: 1000000 ranks are more than can be of use (4 products to sum, in 2 pieces); "
        "ask for 64 or fewer",
    )
    assert not (workspace.root / "results").exists()


def test_ranks_beyond_the_machine_are_refused_before_any_job(tmp_path: Path) -> None:
    """Where they would run here; one core takes some ranks, but not each number."""
    workspace = Workspace.create(tmp_path / "w", before=("taskset", "--cpu-list", "0"))
    workspace.configure(**SMALL, reduce={"ranks": 17})
    assert workspace.run("--dry-run").code == 0
    done = workspace.run()
    refused(
        done, "reduce.ranks: 17 ranks are more than can be of use (this process may use 1 core)"
    )
    assert not workspace.file("plan.tsv").exists()


def test_tasks_of_the_profile_beyond_the_shards_are_refused(tmp_path: Path) -> None:
    """Under `dispatch: mpi`, where the profile says how many ranks compute."""
    workspace = Workspace.create(tmp_path / "w")
    profile = workspace.root / "profiles" / "local" / "config.yaml"
    before = profile.read_text()
    profile.write_text(before.replace("    tasks: 0 #", "    tasks: 1000000 #"))
    assert profile.read_text() != before
    workspace.configure(**SMALL, dispatch="mpi")
    refused(
        workspace.run("--dry-run"),
        "tasks of the rule mpi, in the profile: 1000000 ranks are more than can be of use (the "
        "plan has 2 shards)",
    )


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b'{"starttime": []}', nightly(None)],
)
def test_a_damaged_record_of_snakemake_is_named_with_its_cure(workspace, content):
    """The command that it prints is all that is needed, and nothing is computed again."""
    for record in list((workspace.root / ".snakemake" / "metadata").iterdir())[:2]:
        if content is None:
            record.unlink()
            record.mkdir()
        else:
            record.write_bytes(content)
    before = workspace.file("sum.npy").stat().st_mtime_ns
    done = workspace.run("--dry-run")
    refused(done, "this record of Snakemake is damaged")
    while done.code:  # one of a wrong type shows only when it is read
        refused(done, "this record of Snakemake is damaged")
        (cure,) = [line for line in done.output.splitlines() if line.startswith("  rm ")]
        subprocess.run(shlex.split(cure), cwd=workspace.root, check=True)
        done = workspace.run("--dry-run")
    assert workspace.run().code == 0
    assert workspace.file("sum.npy").stat().st_mtime_ns == before


def test_a_damaged_lock_of_snakemake_is_named_with_its_cure(workspace: Workspace) -> None:
    """A killed run, whose lock was half written."""
    locks = workspace.root / ".snakemake" / "locks"
    locks.mkdir(exist_ok=True)
    for name in ("0.input.lock", "0.output.lock"):
        (locks / name).write_bytes(b"\xff\xfe\n")
    refused(workspace.run("--forceall"), "a lock of Snakemake is damaged")
    assert workspace.run("--unlock").code == 0
    assert workspace.run().code == 0


@pytest.mark.parametrize(
    ("home", "dispatch"),
    [
        ("/proc/nowhere", "jobs"),
        nightly("/dev/null", "jobs"),
        nightly("relative", "pool"),
    ],
)
def test_a_home_that_cannot_be_written_is_not_needed(tmp_path, home, dispatch):
    """As on the nodes of some clusters: all is computed as elsewhere."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")} | {"HOME": home}
    workspace = Workspace.create(tmp_path / "w", env)
    workspace.configure(**SMALL, dispatch=dispatch)
    done = workspace.run()
    assert done.code == 0, done.output
    assert "Traceback" not in done.output
    assert np.isfinite(workspace.load("sum.npy")).all()


def test_numba_compiles_where_it_is_told_not_to(finished: Workspace, tmp_path: Path) -> None:
    """A variable that is set to debug another program costs neither the run nor a factor of 100."""
    workspace = Workspace.create(tmp_path / "w", os.environ | {"NUMBA_DISABLE_JIT": "1"})
    workspace.configure(**SMALL)
    done = workspace.run()
    assert done.code == 0, done.output
    assert np.array_equal(workspace.load("sum.npy"), finished.load("sum.npy"))


def test_the_plugin_leaves_the_choice_of_our_package_to_the_snakefile() -> None:
    """Where Snakemake starts, nothing of ours is imported but the plugin itself."""
    program = (
        "import sys\n"
        "from snakemake.cli import get_argument_parser\n"
        "get_argument_parser()\n"
        "assert 'snakemake_logger_plugin_shardwise' in sys.modules\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'shardwise']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_config_that_is_more_than_data_is_refused(tmp_path: Path) -> None:
    """A template, and equal keys, in any file that Snakemake has read: exit 2, and no job."""
    workspace = Workspace.create(tmp_path / "w")
    template = '__use_yte__: true\nshards: ?2 + 1\nresults: "r"\n'
    twice = "shards: 2\nkeep: sum\nshards: 3\n"
    for text, said in ((template, "__use_yte__ asks"), (twice, "in line 1 and again in line 3")):
        (workspace.root / "mine.yaml").write_text(text)
        done = workspace.run()
        assert done.code == 2, done.output
        assert f"{workspace.root}/mine.yaml: " in done.output
        assert said in done.output
    (workspace.root / "mine.yaml").unlink()
    shipped = workspace.root / "config.yaml"
    shipped.write_text(shipped.read_text() + "shards: 3\n")
    done = workspace.run("--dry-run")
    assert (done.code, "the key shards stands in line" in done.output) == (2, True)
    assert not workspace.file("").exists()
