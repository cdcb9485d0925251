"""The doctor as a whole: sections that hang or die, the verdict, its command line, real ranks."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from shardwise.doctor import report
from shardwise.doctor.finding import Finding
from shardwise.errors import InputError, TryAgain

from tests import processes
from tests.factories import run
from tests.workspace import REPO

LONG = 100
"""Seconds: longer than a section takes on the busiest machine."""

FIELDS = [field.name for field in fields(Finding)]


def test_the_config_names_folder_and_backend(tmp_path: Path) -> None:
    """Options override it; a bad config is a fault, yet the rest is checked; no file is written."""
    (tmp_path / "config.yaml").write_text("results: there\nbackend: numpy\n")
    done = run("doctor", "--time-limit", LONG, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (told["verdict"]["exit_code"], "")
    assert any("there is on" in one["found"] for one in told["findings"])
    page = (REPO / "docs" / "doctor.md").read_text()
    keys = {*told, *told["verdict"], *FIELDS, *(one["section"] for one in told["findings"])}
    assert [key for key in keys if f"`{key}`" not in page] == []
    (tmp_path / "mine.yaml").write_text("shard: 3\n")
    words = ("--time-limit", LONG, "--configfile", "mine.yaml", "--results", "here")
    done = run("doctor", *words, cwd=tmp_path)
    assert done.returncode == 2
    for said in "did you mean shards", "here is on", "2 ranks in one world":
        assert said in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "mine.yaml"}


def test_ranks_that_hang_are_ended(tmp_path: Path) -> None:
    """Even if they ignore SIGTERM, start their own session, and outlive their launcher."""
    pids, launcher = tmp_path / "pids", tmp_path / "mpiexec"
    deaf = f"(trap '' TERM; while :; do sleep 1; done) &\necho $! >> {pids}\n"
    launcher.write_text(f"#!/bin/sh\n{deaf}setsid {deaf}exit 0\n")
    launcher.chmod(0o755)
    done = run("doctor", "--time-limit", 5, "--launcher", launcher, cwd=tmp_path)
    assert done.returncode == 75
    assert "no answer in time" in done.stdout
    assert not processes.living(int(pid) for pid in pids.read_text().split())


def test_the_doctor_ends_no_process_but_its_own(tmp_path: Path) -> None:
    """A script that becomes the doctor leaves it the processes that it has started before.

    It starts even if NumPy does not load, and says so.
    """
    (tmp_path / "numpy.py").write_text("raise ImportError('for another Python')")
    script = 'sleep 600 &>/dev/null & echo $! > pid; exec "$@"'
    line = ["bash", "-c", script, "job", sys.executable, "-P", "-m", "shardwise.command", "doctor"]
    done = subprocess.run(
        [*line, "--time-limit", str(LONG)], cwd=tmp_path, check=False, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert "→ unset PYTHONPATH" in done.stdout
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_section_that_does_not_come_to_its_end() -> None:
    """Its findings so far are kept, and one more says that it hangs, refuses or fails."""
    release = threading.Event()

    def broken(error: Exception | None) -> Any:
        def check(ask: Any) -> Iterator[Finding]:
            yield Finding("ok", "a", "b")
            if error:
                raise error
            release.wait()

        return check

    ends = {"hangs": (None, "later", "this hangs"), "bug": (ValueError("oh"), "fault", "Value"),
            "busy": (TryAgain("busy; wait"), "later", "busy; wait"),
            "input": (InputError("bad; do this"), "fault", "bad; do this")}  # fmt: skip
    looked = report.look({title: broken(error) for title, (error, *_) in ends.items()}, 0.0)
    release.set()
    for title, (_, level, words) in ends.items():
        first, last = looked[title]
        assert first == Finding("ok", "a", "b")
        assert last.level == level
        assert last.found.startswith(words)


@pytest.mark.parametrize(("levels", "code", "words"), [
    (["ok", "note"], 0, "can run here"), (["later"], 75, "cannot run here now (GPUs: x)"),
    (["fault", "later"], 2, "cannot run here yet (GPUs: x)"),
])  # fmt: skip
def test_the_verdict(levels: list[str], code: int, words: str) -> None:
    """One line and an exit code: faults to correct come before troubles that pass with time."""
    free = Finding("ok", "GPU 1", "free", facts={"uuid": "a", "works": True})
    for devices, backend in ([], "numpy"), ([free], "cupy"):
        found = {"GPUs": [*(Finding(level, "x", "y") for level in levels), *devices]}
        told = report.verdict(found)
        assert (told["exit_code"], told["backend"], len(told["devices"])) == (
            code, backend, len(devices)
        )  # fmt: skip
        *_, last = report.to_text(found)
        assert last == f"\n{'!!' if code else 'ok'}  {told['text']}"
        assert words in last
