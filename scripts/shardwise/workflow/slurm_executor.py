"""Corrects an assumption of Snakemake's Slurm plugin (seen with 2.8).

The plugin assumes that a job about which squeue says nothing needs no further look. If Slurm does
not answer, as while its controller restarts, the plugin drops every job that it asked about, and
the run waits forever. We need each job to be followed to its end. So no answer becomes an answer
that names no job: then the plugin asks again.
"""

import logging
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from shardwise.files.paths import Results
from shardwise.work import schedulers

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_PLUGIN = "snakemake_executor_plugin_slurm"


def begin(results: Results, executor: Any) -> None:
    """Patch the plugin, before the first job."""
    schedulers.remember(results, "slurm", executor.run_uuid)  # the name of all its jobs
    plugin = sys.modules[_PLUGIN]
    # If Slurm does not say how long it remembers ended jobs, the plugin would ask sacct: forever,
    # without accounting.
    seconds = plugin.get_min_job_age
    plugin.get_min_job_age = lambda: seconds() or math.inf
    plugin.query_job_status = none_if_unheard(plugin.query_job_status)


def none_if_unheard(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the plugin's query of job states and its duration: no states if Slurm is silent.

    The plugin asks again about jobs without a state, such as new ones.
    """
    silent = False

    async def query_job_status(*words: Any) -> tuple[dict[str, str], float]:
        nonlocal silent
        states, took = await ask(*words)
        if states is None and not silent:
            log.warning("shardwise: Slurm does not answer; asking again")
        silent = states is None
        return ({}, 0.0) if silent else (states, took)

    return query_job_status
