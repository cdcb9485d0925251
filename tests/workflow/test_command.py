"""The command `shardwise`, installed from a wheel, in folders of a user's own."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from shardwise.files.paths import Results
from shardwise.records import locks

from tests import factories, processes, wheel
from tests.wheel import call
from tests.workflow.conftest import SLOW

ONE = {"ranks": 1}


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command is."""
    return wheel.installed(tmp_path_factory.mktemp("wheel"))


def test_a_run_from_a_wheel_has_the_bits_of_ours(bin_folder: Path, tmp_path: Path) -> None:
    """`init`, `plan`, `run` and `verify` work in a user's folder; `run` shows its snakemake once.

    Files there that are named like modules are never imported.
    """
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("queue", "mpi4py", "runpy", "numpy"):
        (folder / f"{name}.py").write_text("open('pwned', 'w')\n")
    call(bin_folder, folder, "init")
    wanted = {"matrices": 12, "dim": 16, "dtype": "float32", "seed": 0}
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"synthetic": wanted, "shards": 3, "dispatch": "pool", "reduce": ONE})
    )
    call(bin_folder, folder, "plan")
    done = call(bin_folder, folder, "run")
    line = done.stderr.splitlines()[0]
    assert " -m snakemake --profile profiles/local -s " in line
    assert done.stderr.count(" -s ") == 1
    command = folder / "results" / "default" / "logs" / "command.txt"
    assert command.read_text() == f"cd {folder} && shardwise run\n"
    assert "whole" in call(bin_folder, folder, "verify").stdout
    assert not (folder / "pwned").exists()
    factories.reduced(factories.listed(factories.plan(tmp_path, synthetic=wanted, shards=2)))
    result, own = Path("results", "default", "sum.npy"), Path("results", "sum.npy")
    assert (folder / result).read_bytes() == (tmp_path / own).read_bytes()
    with (folder / "profiles" / "local" / "config.yaml").open("a") as profile:
        profile.write("# a remark\n")
    assert "Nothing to be done" in call(bin_folder, folder, "submit").stdout


def test_submit_starts_a_run_that_is_not_refused(bin_folder: Path, tmp_path: Path) -> None:
    """Then it ends with 0; if the dry run is refused, it says why, with its code."""
    call(bin_folder, tmp_path, "init")
    wanted = {"matrices": 2, "dim": 4, "dtype": "float32", "seed": 0}
    own = {"synthetic": wanted, "shards": 1, "dispatch": "pool", "results": "-mine"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(own | {"reduce": ONE}))
    results = Results(tmp_path / "-mine")
    said = call(bin_folder, tmp_path, "submit").stdout
    assert "its messages: shardwise.log" in said
    log = tmp_path / "shardwise.log"
    processes.until(results.command.exists)
    processes.until(lambda: not locks.is_job_locked(log))
    before = log.read_text()
    assert "done: -mine/sum.npy" in before
    with locks.take_lock(log, ""):
        assert "is still at work" in call(bin_folder, tmp_path, "submit", code=75).stderr
    done = call(bin_folder, tmp_path, "submit", "--config", "product=A @ C", code=2)
    assert "unknown product" in done.stderr
    assert log.read_text() == before


EARLY = "\nshardwise: interrupted before any job began\n"


@pytest.mark.parametrize(("moment", "words"), [
    ("imported", EARLY),
    ("computed", "\nshardwise: interrupted: 0 of 1 shards done\nTo run just what is missing, "
     "then the sum:\n  cd {} && shardwise run --cores 1\n"),
])  # fmt: skip
def test_ctrl_c_ends_a_run_in_words(bin_folder: Path, tmp_path: Path, moment, words) -> None:
    """However often and whenever it is typed, the run ends with 130 and says how to go on."""
    (tmp_path / "config.yaml").write_text("product: slow.py:slow\nshards: 1\n")
    (tmp_path / "slow.py").write_text(SLOW)
    if moment == "computed":
        (tmp_path / "tried-on").touch()
    with subprocess.Popen(
        [bin_folder / "shardwise", "run", "--cores", "1"], cwd=tmp_path,
        env=wheel.environment(bin_folder), stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=processes.heed_interrupts,  # noqa: PLW1509 - no threads
    ) as run:  # fmt: skip
        run.stderr.readline()  # type: ignore[union-attr]
        processes.until(lambda: moment == "imported" or (tmp_path / moment).exists())
        for _ in range(3):
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(run.pid, signal.SIGINT)
            time.sleep(0.2)
        said = run.stderr.read()  # type: ignore[union-attr]
    assert run.returncode == 130, said
    assert said.endswith(words.format(tmp_path))
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_what_a_folder_lacks_is_said(bin_folder: Path, tmp_path: Path) -> None:
    """No config, two profiles, an unknown command: each ends with 2 and says what to do."""
    assert "shardwise init" in call(bin_folder, tmp_path, "run", code=2).stderr
    for profile in ("slurm", "uge"):
        call(bin_folder, tmp_path, "init", "--profile", profile)
    assert "--profile" in call(bin_folder, tmp_path, "run", "-n", code=2).stderr
    assert call(bin_folder, tmp_path, "run", "--profile=uge", "--x", code=2).stderr.count("\n") < 3
    assert "no command 'rnu'" in call(bin_folder, tmp_path, "rnu", code=2).stderr
    assert "usage: shardwise plan " in call(bin_folder, tmp_path, "plan", "--help").stdout
