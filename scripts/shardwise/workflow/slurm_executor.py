"""Corrects two assumptions of Snakemake's Slurm plugin (seen with 2.8).

The plugin assumes that a job about which squeue says nothing needs no further look. If Slurm does
not answer, as while its controller restarts, the plugin drops every job that it asked about, and
the run waits forever. We need each job to be followed to its end. So no answer becomes an answer
that names no job: then the plugin asks again.

It assumes that what sbatch said when it refused a job, or Slurm when it ended one, belongs in a
long message, which nobody sees under ``quiet``. We need the reason where all reasons are. So it
becomes the job's failure.
"""

import logging
import math
import re
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from shardwise.errors import one_line
from shardwise.work import schedulers, slurm
from shardwise.workflow import failed

if TYPE_CHECKING:
    from shardwise.workflow.run import Run

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_PLUGIN = "snakemake_executor_plugin_slurm"
_STATUS = re.compile(r"status is: '?([A-Z_]+)")
_SAID = re.compile(r"The error message was '?(.*?)'?\.?\n? *(sbatch call:|$)", re.DOTALL)


def begin(run: "Run", executor: Any) -> None:
    """Patch the plugin, before the first job."""
    schedulers.remember(run.results, "slurm", executor.run_uuid)  # the name of all its jobs
    kind, plugin = type(executor), sys.modules[_PLUGIN]
    kind.report_job_error = noting_failures(run, kind.report_job_error)
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


def noting_failures(run: "Run", report: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``report_job_error`` of an executor: what Slurm says of a failed job is its failure."""

    def report_job_error(self: Any, info: Any, msg: str | None = None, **named: Any) -> None:
        refused = None if info.external_jobid else _SAID.search(msg or "")
        status = _STATUS.search(msg or "")
        if not hasattr(info.job, "rule"):  # a group of jobs
            pass
        elif refused:
            error = slurm.Slurm().refusal(one_line(refused[1].strip()), 1)
            failed.note_refused(run, info.job, "Slurm", error)
        elif status and status[1] != "FAILED":  # else the job has ended by itself
            failed.note(run, info.job, f"the scheduler says {status[1]}")
        report(self, info, msg, **named)

    return report_job_error
