"""The page on a run that has failed: making it never makes anything worse."""

import pytest
from shardwise.files.paths import Results
from shardwise.workflow import hooks


@pytest.mark.parametrize(("script", "words"), [
    ("import sys, pathlib; pathlib.Path(sys.argv[2], 'seen').touch()", None),
    ("raise ValueError('a\\x1b[2J b')", r"ValueError: a\x1b[2J b"),
    ("import time; time.sleep(60)", "out of time"),
])  # fmt: skip
def test_a_page_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, capsys, script, words):
    """A script that fails or hangs; no control character is shown."""
    monkeypatch.setattr(hooks, "SCRIPTS", tmp_path)
    monkeypatch.setattr(hooks, "_PAGE_SECONDS", 1.0 if words == "out of time" else 60.0)
    (tmp_path / "report.py").write_text(script)
    assert hooks.make_page(Results(tmp_path)) == (words is None)
    assert (tmp_path / "seen").exists() == (words is None)
    said = capsys.readouterr().err.splitlines()
    assert [(words in line, line.isprintable()) for line in said] == [(True, True)] * bool(words)
