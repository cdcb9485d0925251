"""`init` and `submit` in a user's folder."""

from pathlib import Path

import pytest
from shardwise.command import runs
from shardwise.errors import TryAgain

from tests.factories import refusal


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and a scheduler that accepts every job as number 7."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize("profile", ["local", "uge"])
def test_init_says_which_dry_run_to_make(profile: str, capfd) -> None:
    """Without its profile a run would be refused in a folder that has several."""
    runs.init(["--profile", "slurm"])
    capfd.readouterr()
    runs.init(["--profile", profile])
    *_, last = capfd.readouterr().out.splitlines()
    assert last.endswith(f": shardwise run --profile {profile} -n")


def test_submit_reads_the_profile_as_snakemake_does(here: Path, capfd) -> None:
    """Its scheduler gets the job, however the executor is quoted; `watch` gets its results."""
    runs.init(["--profile", "slurm"])
    profile = here / "profiles" / "slurm" / "config.yaml"
    profile.write_text(profile.read_text().replace("executor: slurm", "executor: 'slurm' # ours"))
    (here / "mine.yaml").write_text("results: my results\n")
    assert runs.submit(["--job=--time=5", "--configfile", "mine.yaml"]) == 0
    said = capfd.readouterr().out
    assert "job 7 will do the run" in said
    assert "watch it: shardwise watch 'my results'\nStop it" in said


def test_no_job_is_submitted_from_a_folder_whose_name_slurm_would_change(
    here: Path, monkeypatch, capfd
) -> None:
    """Slurm would run the job, and write its messages, in another folder."""
    (here / "a %j").mkdir()
    monkeypatch.chdir(here / "a %j")
    runs.init(["--profile", "slurm"])
    assert runs.submit(["--job="]) == 2
    said = capfd.readouterr()
    assert "the working directory" in said.err
    assert "holds '%j'" in said.err
    assert "will do the run" not in said.out


@pytest.mark.parametrize("name", ["profiles", "profiles/uge"])
def test_a_file_in_the_place_of_a_folder_is_named(here: Path, name: str) -> None:
    """The file stays as it is."""
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("mine")
    told = refusal(runs.init, ["--profile", "uge"])
    assert "profiles/uge/config.yaml cannot be written: a file is where its folder" in told
    assert (here / name).read_text() == "mine"


def test_a_folder_has_one_submitted_run_at_a_time() -> None:
    """A second one is refused while the first works; so is a job if there is no scheduler."""
    runs.init([])
    assert "no scheduler" in refusal(runs.submit, ["--job="])
    with runs.take_log(), pytest.raises(TryAgain, match="still at work"):
        runs.submit([])
    runs.take_log().close()
