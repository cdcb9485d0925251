"""Hooks: the page on a run that has failed, and Slurm's jobs of unknown state."""

import asyncio
import logging
import math
import sys
from types import SimpleNamespace

import pytest
from shardwise.files.paths import Results
from shardwise.workflow import hooks


@pytest.mark.parametrize(("script", "words"), [
    ("import sys, pathlib; pathlib.Path(sys.argv[2], 'seen').touch()", None),
    ("raise ValueError('a\\x1b[2J b')", r"ValueError: a\x1b[2J b"),
    ("import sys, time; print('INFO x', file=sys.stderr, flush=True); time.sleep(60)",
     "out of time"),
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


def test_a_silent_slurm_says_nothing_of_any_job(tmp_path, monkeypatch, caplog) -> None:
    """Each job counts as running; each silence is logged once; the plugin alone would drop all."""
    answers = iter([({"1": "FAILED"}, 0.1), (None, None), (None, None), ({}, 0.2), (None, None)])

    async def ask(command: str, logger: object) -> tuple:
        return next(answers)

    plugin = SimpleNamespace(query_job_status=ask, get_min_job_age=lambda: None)
    monkeypatch.setitem(sys.modules, "snakemake_executor_plugin_slurm", plugin)
    hooks.heed_silence(Results(tmp_path), SimpleNamespace(run_uuid="u"))
    assert plugin.get_min_job_age() == math.inf
    with caplog.at_level(logging.WARNING):
        found = [asyncio.run(plugin.query_job_status("squeue", None)) for _ in range(5)]
    assert found == [({"1": "FAILED"}, 0.1), ({}, 0.0), ({}, 0.0), ({}, 0.2), ({}, 0.0)]
    assert caplog.messages == ["shardwise: Slurm does not answer; asking again"] * 2
