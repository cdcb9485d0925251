"""The controller as a job; in place of Snakemake, a script that notes its calls."""

import os
import signal
import subprocess
import sys

import pytest

from tests import processes
from tests.factories import SCRIPTS

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


@pytest.fixture
def line(tmp_path):
    """The command line of the script."""
    (tmp_path / "own.py").write_text(SNAKEMAKE)
    return [sys.executable, str(tmp_path / "own.py"), str(tmp_path)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1])
def test_a_signal_cancels_the_run(tmp_path, line, number):
    """Whether the job is cancelled or out of time: a Ctrl-C ends Snakemake, and nothing is left."""
    words = [sys.executable, "-m", "shardwise.command.controller", *line]
    job = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, cwd=tmp_path)
    processes.until((tmp_path / "runs").exists)
    job.send_signal(number)
    assert job.wait(timeout=30) == 7
    processes.until(lambda: not [p for p in processes.running() if line[1] in processes.words(p)])
