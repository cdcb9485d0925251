"""Snakemake as a job of the scheduler: cancelled it leaves nothing, out of time it goes on."""

import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import psutil
import pytest

from tests.clusters.night import Night, sum_of_squares

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

WORDS = {"slurm": "--partition=cpu --ntasks=1 --mem=500", "uge": ""}
"""What the job of the controller asks for, by profile."""


def submit(night: Night) -> str:
    """Submit a run whose jobs wait for `release`; the number of its controller."""
    root, env = night.workspace.root, night.workspace.env or dict(os.environ)
    profile = night.cluster.profile
    words = ["submit", "--profile", profile, f"--job={WORDS[profile]}", "--configfile", "mine.yaml"]
    line = [sys.executable, "-m", "shardwise.command", *words, *night.cluster.quick, *night.held()]
    done = subprocess.run(
        [*night.workspace.before, *line], cwd=root, env=env | {"PYTHONPATH": str(root / "scripts")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = (part for part in done.stdout.splitlines() if part.startswith("job "))
    return said.split()[1]


def controllers(night: Night) -> set[int]:
    """The processes of the controller."""
    return {
        process.pid
        for process in psutil.process_iter(["cmdline", "cwd"])
        if "shardwise.command.controller" in (process.info["cmdline"] or ())
        and process.info["cwd"] == str(night.workspace.root)
    }


def test_the_controller_is_a_job(night: Night) -> None:
    """Cancelled, it cancels its jobs; out of time, it is queued again and waits for them."""
    stack = night.folder_of(2)
    night.workspace.configure(input="stack", shards=2, materialize=False)
    own = f"multiply {0:05}", f"multiply {1:05}"
    job = submit(night)
    night.wait_for("both run", lambda: len(night.running("multiply")) == 2)
    night.cluster.cancel(job)
    night.wait_for("all are gone", night.idle)
    assert not night.receipts()
    before = night.starts()

    submit(night)
    night.wait_for("both run again", lambda: len(night.running("multiply")) == 2)
    (first,) = controllers(night)
    os.kill(first, signal.SIGUSR1)  # as the scheduler does before its limit
    night.wait_for("it is started again", lambda: controllers(night) - {first})
    assert len(night.running("multiply")) == 2
    night.release()
    night.wait_for("there is a sum", night.workspace.file("summary.json").exists)
    night.wait_for("it has ended", night.idle)
    assert np.array_equal(night.sum(), sum_of_squares(stack))
    since = Counter({what: n for what, n in (night.starts() - before).items() if what in own})
    assert since == Counter(own)
