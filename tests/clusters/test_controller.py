"""Snakemake as a job of the scheduler: cancelled, it leaves nothing."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

WORDS = {"slurm": "--partition=cpu --ntasks=1 --mem=500", "uge": ""}
"""What the controller's job requests, by profile."""


def submit(night) -> str:
    """Submit a run; return the job number of its controller."""
    profile = night.cluster.profile
    words = ["submit", "--profile", profile, f"--job={WORDS[profile]}", "--configfile", "mine.yaml"]
    line = [sys.executable, "-m", "shardwise.command", *words, *night.cluster.quick]
    done = subprocess.run(
        [*night.workspace.before, *line], cwd=night.root, capture_output=True, text=True,
        env=night.workspace.env | {"PYTHONPATH": str(night.root / "scripts")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = (part for part in done.stdout.splitlines() if part.startswith("job "))
    return said.split()[1]


@pytest.mark.parametrize("site", ["slurm", "grid_engine"], indirect=True)
def test_the_controller_is_a_job(night):
    """If cancelled, it cancels its jobs; the same command again computes what is missing."""
    night.gated(2)
    job = submit(night)
    night.wait_for("both run", lambda: len(night.at_gate()) == 2)
    night.cluster.cancel(job)
    night.wait_for("all are gone", night.idle)
    assert not night.receipts()

    night.open()
    submit(night)
    night.wait_for("there is a sum", night.workspace.file("summary.json").exists)
    night.wait_for("it has ended", night.idle)
    night.check_sum()
