"""The controller as a job; in place of Snakemake, a script that notes its calls."""

import os
import signal
import subprocess
import sys

import pytest
from shardwise.command import controller

from tests import processes
from tests.factories import SCRIPTS

SNAKEMAKE = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
if (folder / "deaf").exists():  # the first Ctrl-C is lost, as it may be while SIGTERM is pending
    again = lambda *_: signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGINT, again)
with open(folder / "calls", "a") as calls:
    calls.write(" ".join(sys.argv[2:]) + "\\n")
codes = (folder / "codes").read_text().split()
if codes:
    (folder / "codes").write_text(" ".join(codes[1:]))
    sys.exit(int(codes[0]))
try:
    (folder / "runs").touch()
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.fixture
def line(tmp_path):
    """The command line of the script."""
    (tmp_path / "own.py").write_text(SNAKEMAKE)
    (tmp_path / "codes").touch()
    return [sys.executable, str(tmp_path / "own.py"), str(tmp_path)]


@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGTERM, 7), (signal.SIGUSR2, 7), (signal.SIGUSR1, 99), (signal.SIGKILL, -9),
])  # fmt: skip
def test_a_signal_ends_snakemake_in_its_way(tmp_path, line, number, code):
    """Ctrl-C if cancelled; SIGKILL if out of time, and the job is queued again; nothing is left."""
    env = {key: value for key, value in os.environ.items() if key[:6] != "SLURM_"}
    if code == 7:
        (tmp_path / "deaf").touch()
    words = [sys.executable, "-m", "shardwise.command.controller", *line]
    job = subprocess.Popen(words, env=env | {"PYTHONPATH": str(SCRIPTS)}, cwd=tmp_path)
    processes.until((tmp_path / "runs").exists)
    job.send_signal(number)
    assert job.wait(timeout=30) == code
    processes.until(lambda: not [p for p in processes.running() if line[1] in processes.words(p)])


def test_it_waits_where_it_is_started_again(tmp_path, line, monkeypatch):
    """Code 75 means that jobs of the earlier run still live; any other code ends the controller."""
    monkeypatch.setattr(controller, "_LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(controller.signal, "pthread_sigmask", lambda how, signals: None)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    (tmp_path / "codes").write_text("75 75 1 0")
    assert controller.control([*line, "-n"]) == 1
    assert (tmp_path / "calls").read_text().splitlines() == ["-n", "-n", "-n"]
