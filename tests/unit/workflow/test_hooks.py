"""The page on a run that has failed: making it never makes anything worse."""

from unittest.mock import Mock

import pytest
from shardwise.files.paths import Results
from shardwise.workflow import hooks


@pytest.mark.parametrize(("script", "words"), [
    ("import sys, pathlib; pathlib.Path(sys.argv[2], 'seen').touch()", None),
    ("raise ValueError('a\\x1b[2J b')", r"ValueError: a\x1b[2J b"),
    ("import time; time.sleep(60)", "timed out"),
    (KeyboardInterrupt, "interrupted"),
])  # fmt: skip
def test_a_page_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, script, words):
    """A script that fails or hangs, a user who presses Ctrl-C; no control character is shown."""
    said: list[str] = []
    monkeypatch.setattr(hooks.log, "warning", said.append)
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(hooks, "SCRIPTS", tmp_path)
    monkeypatch.setattr(hooks, "_PAGE_SECONDS", 1.0 if words == "timed out" else 60.0)
    if script is KeyboardInterrupt:
        monkeypatch.setattr(hooks.subprocess, "run", Mock(side_effect=script))
    else:
        (tmp_path / "report.py").write_text(script)
    assert hooks.make_page(Results(tmp_path / "results")) == (words is None)
    assert (tmp_path / "results" / "seen").exists() == (words is None)
    assert [(words in line, line.isprintable()) for line in said] == [(True, True)] * bool(words)
