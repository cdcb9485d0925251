"""Snakemake's Slurm plugin believes that a job of which squeue says nothing needs no further look.

Where Slurm does not answer, as while its controller is started again, it drops every job that it
asked for, and the run waits for ever. We need each job to be seen to its end. So jobs of which
nothing was learnt are asked for again. (Seen with snakemake-executor-plugin-slurm 2.8.)
"""

import logging
import math
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_PLUGIN = "snakemake_executor_plugin_slurm"


def begin() -> None:
    """Let the plugin, where this run uses it, keep the jobs of which it learns nothing."""
    if _PLUGIN in sys.modules:
        plugin = sys.modules[_PLUGIN]
        plugin.Executor.check_active_jobs = keeping(plugin.Executor.check_active_jobs)
        plugin.get_min_job_age = long_if_untold(plugin.get_min_job_age)


def long_if_untold(ask: Callable[[], int | None]) -> Callable[[], float]:
    """How long squeue knows of ended jobs; where Slurm does not say, long enough.

    Else the plugin would ask sacct, whatever the profile says: for ever, without accounting.
    """
    return lambda: math.inf if (age := ask()) is None else age


def keeping(check: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Wrap ``check_active_jobs`` of an executor: all jobs that it did not report keep running."""
    silent = False

    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        nonlocal silent
        heard = _reported(self)
        heard.clear()
        async for job in check(self, active_jobs):
            heard.add(id(job))
            yield job
        lost = [job for job in active_jobs if id(job) not in heard]
        if lost and not silent:
            log.warning(f"shardwise: Slurm does not answer; asking again about {len(lost)} jobs")
        silent = bool(lost)
        for job in lost:
            yield job

    return check_active_jobs


def _reported(executor: Any) -> set[int]:
    """The identities of jobs whose end an executor reports; it fills up from now on."""
    reported = vars(executor).get("_shardwise_reported")
    if reported is None:
        reported = executor._shardwise_reported = set()
        for name in ("report_job_success", "report_job_error"):
            setattr(executor, name, _noting(getattr(executor, name), reported))
    return reported


def _noting(report: Callable[..., None], reported: set[int]) -> Callable[..., None]:
    def noted(job: Any, *arguments: Any, **named: Any) -> None:
        reported.add(id(job))
        report(job, *arguments, **named)

    return noted
