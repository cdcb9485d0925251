"""The page on a run that has failed: the hook that makes it never makes anything worse."""

import time
from pathlib import Path
from unittest.mock import Mock

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


@pytest.mark.parametrize(("script", "words"), [
    ("import sys, pathlib; pathlib.Path(sys.argv[2], 'seen').touch()", None),
    ("raise ValueError('a\\x1b[2J b')", r"ValueError: a\x1b[2J b"),
    ("import time; time.sleep(60)", "timed out"),
    (KeyboardInterrupt, "interrupted"),
])  # fmt: skip
def test_a_page_that_cannot_be_made_is_one_line(said, tmp_path, monkeypatch, script, words):
    """A script that fails or hangs, a user who presses Ctrl-C; no control character is shown."""
    monkeypatch.setattr(hooks, "_PAGE_SECONDS", 1.0 if words == "timed out" else 60.0)
    if script is KeyboardInterrupt:
        monkeypatch.setattr(hooks.subprocess, "run", Mock(side_effect=script))
    else:
        (tmp_path / "report.py").write_text(script)
    hooks.after_failure(Results(tmp_path / "results"), summed=False)
    assert (tmp_path / "results" / "seen").exists() == (words is None)
    assert [(words in line, line.isprintable()) for line in said] == [(True, True)] * bool(words)


@pytest.mark.parametrize("summed", [False, True])
def test_the_page_is_of_today_and_older_than_a_sum(said, tmp_path, summed):
    """Once there is a sum, Snakemake makes the page anew."""
    (tmp_path / "report.py").write_text("import sys; open(sys.argv[2] + '/report.html', 'w')")
    results, began = Results(tmp_path / "results"), time.time() - 2
    results.summary.touch()
    hooks.after_failure(results, summed)
    assert began < (page := results.report.stat().st_mtime)
    assert (page < results.summary.stat().st_mtime) == summed
