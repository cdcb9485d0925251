"""Hooks: Slurm's jobs of unknown state."""

import asyncio
import logging
import math
import sys
from types import SimpleNamespace

from shardwise.files.paths import Results
from shardwise.workflow import hooks


def test_a_silent_slurm_says_nothing_of_any_job(tmp_path, monkeypatch, caplog) -> None:
    """Each job counts as running; each silence is logged once; the plugin alone would drop all."""
    answers = iter([({"1": "FAILED"}, 0.1), (None, None), (None, None), ({}, 0.2), (None, None)])

    async def ask(command: str, logger: object) -> tuple:
        return next(answers)

    plugin = SimpleNamespace(query_job_status=ask, get_min_job_age=lambda: None)
    monkeypatch.setitem(sys.modules, "snakemake_executor_plugin_slurm", plugin)
    hooks.heed_silence(SimpleNamespace(results=Results(tmp_path)), SimpleNamespace(run_uuid="u"))
    assert plugin.get_min_job_age() == math.inf
    with caplog.at_level(logging.WARNING):
        found = [asyncio.run(plugin.query_job_status("squeue", None)) for _ in range(5)]
    assert found == [({"1": "FAILED"}, 0.1), ({}, 0.0), ({}, 0.0), ({}, 0.2), ({}, 0.0)]
    assert caplog.messages == ["shardwise: Slurm does not answer; asking again"] * 2
