"""Snakemake's Slurm plugin, where Slurm does not answer.

The plugin asks squeue for all of its jobs at once, a few times within a second. If no answer comes
(a controller that is started again is away for longer), it drops every job that it asked for: it
never hears of them again, and the run waits for ever, long after they have ended. So jobs of which
nothing was learnt are asked for again. (Seen with snakemake-executor-plugin-slurm 2.8.)
"""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_PLUGIN = "snakemake_executor_plugin_slurm"


def begin() -> None:
    """Let the plugin, where this run uses it, keep the jobs of which it learns nothing."""
    if _PLUGIN in sys.modules:
        executor = sys.modules[_PLUGIN].Executor
        executor.check_active_jobs = keeping(executor.check_active_jobs)


def keeping(check: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """A check for ended jobs that gives back all the others.

    Parameters
    ----------
    check
        ``check_active_jobs`` of an executor: it reports jobs that have ended, and yields those that
        have not.
    """
    silent = False

    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        nonlocal silent
        known = _ended(self)
        known.clear()
        async for job in check(self, active_jobs):
            known.add(id(job))
            yield job
        lost = [job for job in active_jobs if id(job) not in known]
        if lost and not silent:
            log.warning(f"shardwise: Slurm does not answer; {len(lost)} jobs are asked for again")
        silent = bool(lost)
        for job in lost:
            yield job

    return check_active_jobs


def _ended(executor: Any) -> set[int]:
    """The identities of jobs that an executor has reported as ended since they were cleared."""
    found = vars(executor).get("_shardwise_ended")
    if found is None:
        found = executor._shardwise_ended = set()
        for name in ("report_job_success", "report_job_error"):
            setattr(executor, name, _noting(getattr(executor, name), found))
    return found


def _noting(report: Callable[..., None], found: set[int]) -> Callable[..., None]:
    def noted(job: Any, *arguments: Any, **named: Any) -> None:
        found.add(id(job))
        report(job, *arguments, **named)

    return noted
