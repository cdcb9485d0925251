"""`init` and `submit` in a user's folder, and the job that runs Snakemake."""

import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from shardwise.command import runs

from tests import processes
from tests.factories import SCRIPTS, refusal


def options(job: str | None = None, profile: str | None = None, *others: str) -> Namespace:
    """What a user typed."""
    words = None if job is None else [job]
    return Namespace(profile=profile, job=words, others=list(others))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and a scheduler that accepts every job as number 7."""
    monkeypatch.setenv("PATH", processes.commands(tmp_path, sbatch="#!/bin/sh\necho 7\n"))
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize(("others", "watch"), [
    (["--configfile", "config.yaml", "b.yaml", "-n"], " --configfile config.yaml b.yaml"),
    (["--config", "results=a b", "-n"], " 'a b'"),
])  # fmt: skip
def test_submit_reads_the_profile_as_snakemake_does(here: Path, capfd, others, watch) -> None:
    """Its scheduler gets the job, however the executor is quoted; the watch looks at this run."""
    Path("b.yaml").write_text("shards: 2\n")
    runs.init(options(profile="slurm"))
    profile = here / "profiles" / "slurm" / "config.yaml"
    profile.write_text(profile.read_text().replace("executor: slurm", "executor: 'slurm' # ours"))
    assert runs.submit(options("--time=5", None, *others)) == 0
    said = capfd.readouterr().out
    assert "job 7 does the run" in said
    assert f"\nWatch it: shardwise watch{watch}\n" in said


def test_what_keeps_a_job_from_being_submitted_is_told(here: Path, capfd) -> None:
    """It is the user's to correct: neither a fault of ours, nor something to try again."""
    assert "no profile pbs; name one of local" in refusal(runs.init, options(profile="pbs"))
    runs.init(options())
    bare = options(None, "local", "--config", "shards")
    assert "--config takes KEY=VALUE, such as shards=8" in refusal(runs.submit, bare)
    assert "executor must be one of slurm" in refusal(runs.submit, options("", "local"))
    runs.init(options(profile="uge"))
    assert "qsub is not on PATH" in refusal(runs.submit, options("", "uge"))
    (here / "profiles" / "uge" / "config.yaml").write_text("executor: [\n")
    assert runs.submit(options("", "uge")) == 2
    assert "Couldn't parse config file" in capfd.readouterr().err


SNAKEMAKE = """
import pathlib, signal, sys, time
# The first Ctrl-C is lost, as it may be while SIGTERM is pending.
again = lambda *_: signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGINT, again)
try:
    pathlib.Path(sys.argv[1], "runs").touch()
    while True:
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1])
def test_a_signal_cancels_the_run_in_a_job(tmp_path, number):
    """Whether the job is cancelled or out of time: a Ctrl-C ends Snakemake, and nothing is left."""
    (tmp_path / "own.py").write_text(SNAKEMAKE)
    line = [sys.executable, str(tmp_path / "own.py"), str(tmp_path)]
    words = [sys.executable, "-m", "shardwise.command.runs", *line]
    job = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, cwd=tmp_path)
    processes.until((tmp_path / "runs").exists)
    job.send_signal(number)
    assert job.wait(timeout=30) == 7
    processes.until(lambda: not [p for p in processes.running() if line[1] in processes.words(p)])
