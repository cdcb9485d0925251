"""Corrects three assumptions of Snakemake's Slurm plugin (seen with 2.8).

The plugin assumes that a job about which squeue says nothing needs no further look. If Slurm does
not answer, as while its controller restarts, the plugin drops every job that it asked about, and
the run waits forever. We need each job to be followed to its end. So no answer becomes an answer
that names no job: then the plugin asks again.

It assumes that what sbatch said when it refused a job, or Slurm when it ended one, belongs in a
long message, which nobody sees under ``quiet``. We need the reason where all reasons are. So it
becomes the job's failure.

It assumes that a waiting job will start. Some never do, such as those that ask for more time than
their partition allows. We need to say so, as only the user can change it.
"""

import asyncio
import functools
import logging
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
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


def none_if_unheard(
    ask: Callable[..., Awaitable[Any]], stuck: Callable[[], str]
) -> Callable[..., Awaitable[Any]]:
    """Wrap the plugin's query of job states and its duration: no states if Slurm is silent.

    The plugin asks again about jobs without a state, such as new ones. Now and then ``stuck`` says
    why none of them will start, see `Slurm.stuck`; a new reason is logged as a warning.
    """
    silent, looked, told = False, time.monotonic(), ""

    async def query_job_status(*words: Any) -> tuple[dict[str, str], float]:
        nonlocal silent, looked, told
        states, took = await ask(*words)
        if states is None:
            if not silent:
                log.warning("shardwise: Slurm does not answer; asking again")
            silent = True
            return {}, 0.0
        silent = False
        if time.monotonic() - looked >= schedulers.UNHEARD_SECONDS:
            looked, before = time.monotonic(), told
            with suppress(OSError):
                told = await asyncio.to_thread(stuck)
            if told not in ("", before):
                log.warning(
                    f"shardwise: Slurm will not start any of the remaining jobs ({told}): remove "
                    "what holds them, or end the run with Ctrl-C and correct the profile"
                )
        return states, took

    return query_job_status


def begin(run: "Run", executor: Any) -> None:
    """Patch the plugin, before the first job."""
    schedulers.remember(run.results, "slurm", executor.run_uuid)  # the name of all its jobs
    kind = type(executor)
    kind.report_job_error = noting_failures(run, kind.report_job_error)
    plugin = sys.modules[_PLUGIN]
    # Slurm may not say how long it remembers ended jobs. Then the plugin would ask sacct, whatever
    # the profile says: forever, without accounting.
    seconds = plugin.get_min_job_age
    plugin.get_min_job_age = lambda: math.inf if (age := seconds()) is None else age
    stuck = functools.partial(slurm.Slurm().stuck, executor.run_uuid)
    plugin.query_job_status = none_if_unheard(plugin.query_job_status, stuck)


def noting_failures(run: "Run", report: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``report_job_error`` of an executor: what Slurm says of a failed job is its failure."""

    def report_job_error(self: Any, info: Any, msg: str | None = None, **named: Any) -> None:
        refused = None if info.external_jobid else _SAID.search(msg or "")
        status = _STATUS.search(msg or "")
        if hasattr(info.job, "rule"):  # a group of jobs has none
            if refused:
                error = slurm.Slurm().refusal(one_line(refused[1].strip()), 1)
                failed.note_refused(run, info.job, "Slurm", error)
            elif status and status[1] != "FAILED":  # else the job has ended by itself
                failed.note(run, info.job, f"the scheduler says {status[1]}")
        report(self, info, msg, **named)

    return report_job_error
