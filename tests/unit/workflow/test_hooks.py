"""The page on a run that has failed: the hook that makes it never makes anything worse."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise.files.paths import Results
from shardwise.workflow import hooks, run


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the hook warns of, with a script of the test's own in place of report.py."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(hooks, "SCRIPTS", tmp_path)
    lines: list[str] = []
    monkeypatch.setattr(run.log, "warning", lines.append)
    return lines


def failed(folder: Path, script: str) -> None:
    """A run has failed; ``script`` is to make its page."""
    (folder / "report.py").write_text(script)
    hooks.after_failure(Results(folder / "results"))


def test_the_page_is_made_by_the_script(said: list[str], tmp_path: Path) -> None:
    """It is given the folder, whether or not it holds a plan."""
    failed(tmp_path, "import sys, pathlib; pathlib.Path(sys.argv[2], 'seen').touch()")
    assert (tmp_path / "results" / "seen").exists()
    assert said == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise ValueError('a\\x1b[2J b')", r"ValueError: a\x1b[2J b"),
        ("import sys; sys.exit(3)", "it exited 3"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_a_page_that_cannot_be_made_is_one_line(said, tmp_path, monkeypatch, script, words):
    """A fault in the script, and one that hangs; no control character reaches the terminal."""
    monkeypatch.setattr(hooks, "_PAGE_SECONDS", 1.0 if "sleep" in script else 60.0)
    failed(tmp_path, script)
    (line,) = said
    assert words in line
    assert line.isprintable()


def test_a_run_without_a_folder_has_no_page(said, tmp_path, caplog):
    """Where nothing has been written, nothing is."""
    with caplog.at_level(logging.DEBUG):
        hooks.after_failure(Results(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    assert said == []


def test_an_impatient_user_has_no_page(said, tmp_path, monkeypatch):
    """Ctrl-C while the page is made ends that in one line, and nothing else."""

    def interrupted(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hooks.subprocess, "run", interrupted)
    failed(tmp_path, "")
    (line,) = said
    assert line.endswith("interrupted")


@pytest.mark.parametrize(
    ("code", "new", "tries"), [(2, True, 0), (3, True, 0), (75, True, 5), (2, False, 5)]
)
def test_bad_input_is_not_tried_again(tmp_path, monkeypatch, code, new, tries):
    """Nor is a failed check; a log of an earlier run says nothing of this one."""
    monkeypatch.setattr(hooks.Job, "restart_times", None)
    results = Results(tmp_path)
    results.running.parent.mkdir(parents=True)
    results.running.touch()
    log = tmp_path / "job.log"
    log.write_text(f"2026-01-02 03:04:05,678 INFO exit code {code}\n")
    hooks._try_once(results)
    if not new:
        os.utime(log, (1, 1))
    else:
        os.utime(log)
    job = SimpleNamespace(log=[str(log)], rule=SimpleNamespace(restart_times=5))
    assert hooks.Job.restart_times.fget(job) == tries
