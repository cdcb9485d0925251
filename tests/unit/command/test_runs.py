"""`init` and `submit` in a user's folder."""

from pathlib import Path

import pytest
from shardwise import host
from shardwise.command import runs
from shardwise.errors import TryAgain

from tests.factories import refusal


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and a scheduler that accepts every job as number 7."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(
        f'#!/bin/sh\necho 7\necho "submitted: ${host.SUBMITTED}" >&2\n'
    )
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def test_submit_reads_the_profile_as_snakemake_does(here: Path, capfd) -> None:
    """Its scheduler gets the job, however the executor is quoted; the log gets the `watch` line."""
    runs.init(["--profile", "slurm"])
    profile = here / "profiles" / "slurm" / "config.yaml"
    profile.write_text(profile.read_text().replace("executor: slurm", "executor: 'slurm' # ours"))
    assert runs.submit(["--job=--time=5", "--", "results/default/sum.npy"]) == 0
    said = capfd.readouterr()
    assert "job 7 will do the run" in said.out
    assert "submitted: 1\n" in said.err


def test_what_keeps_a_job_from_being_submitted_is_told(here: Path, capfd) -> None:
    """It is the user's to correct: neither a fault of ours, nor something to try again."""
    runs.init(["--profile", "uge"])
    assert "qsub is not on PATH" in refusal(runs.submit, ["--job="])
    with pytest.raises(SystemExit, match="2"):
        runs.submit(["--job=--name='x"])
    (here / "profiles" / "uge" / "config.yaml").write_text("executor: [\n")
    assert runs.submit(["--job="]) == 2
    assert "Couldn't parse config file" in capfd.readouterr().err


def test_a_folder_has_one_submitted_run_at_a_time() -> None:
    """A second one is refused while the first works; so is a job if there is no scheduler."""
    runs.init([])
    assert "executor must be one of slurm" in refusal(runs.submit, ["--job="])
    with runs.take_log(), pytest.raises(TryAgain, match="still at work"):
        runs.submit([])
    runs.take_log().close()
