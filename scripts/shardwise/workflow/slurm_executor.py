"""Two beliefs of Snakemake's Slurm plugin (seen with 2.8), and a check before the first job.

It believes that a job of which squeue says nothing needs no further look. Where Slurm does not
answer, as while its controller is started again, it drops every job that it asked for, and the run
waits for ever. We need each job to be seen to its end. So no answer becomes an answer that names
no job: then the plugin asks again.

It believes that what sbatch said when it refused a job belongs into a long message, which nobody
sees under ``quiet``. We need the reason where all reasons are. So it becomes the job's failure.
"""

import logging
import math
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from shardwise.errors import InputError, one_line, verdict
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.work import schedulers, slurm
from shardwise.workflow import recipe
from shardwise.workflow.names import failure_name

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_PLUGIN = "snakemake_executor_plugin_slurm"
_SAID = re.compile(r"The error message was '?(.*?)'?\.?\n? *(sbatch call:|$)", re.DOTALL)


def long_if_untold(ask: Callable[[], int | None]) -> Callable[[], float]:
    """How long squeue knows of ended jobs; where Slurm does not say, long enough.

    Else the plugin would ask sacct, whatever the profile says: for ever, without accounting.
    """
    return lambda: math.inf if (age := ask()) is None else age


def none_if_unheard(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """What Slurm says of jobs, and the seconds that it took; nothing of any where it is silent.

    The plugin asks again about jobs of which nothing was said, such as new ones.
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


def begin(plan: Plan, workflow: Any, needed: Iterable[Any]) -> None:
    """Under an executor ``slurm``, check what the jobs ask for, and mend the plugin.

    Raises InputError where Slurm would not take the jobs of a rule.
    """
    jobs = [job for job in needed if not job.is_local]
    if not jobs or workflow.executor_plugin.name != "slurm":
        return
    # Else an account that no job may use would only show in the failure of each.
    for rule, job in {job.rule.name: job for job in jobs}.items():
        recipe.verify("slurm", rule, job.resources, recipe.slurm_words(job, workflow))
    submits = workflow.scheduler.get_executor(jobs[0])
    schedulers.remember(plan.results, "slurm", submits.run_uuid)  # the name of all its jobs
    executor = type(submits)
    executor.report_job_error = noting_refusals(plan, executor.report_job_error)
    plugin = sys.modules[_PLUGIN]
    plugin.get_min_job_age = long_if_untold(plugin.get_min_job_age)
    plugin.query_job_status = none_if_unheard(plugin.query_job_status)


def noting_refusals(plan: Plan, report: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``report_job_error`` of an executor: why sbatch refused a job is its failure."""

    def report_job_error(self: Any, info: Any, msg: str | None = None, **named: Any) -> None:
        said = None if info.external_jobid else _SAID.search(msg or "")
        rule = getattr(info.job, "rule", None)  # a group of jobs has none
        if said and rule:
            error = slurm.refusal(one_line(said[1].strip()))
            cure = ""
            if isinstance(error, InputError):  # no other try would be taken
                cure, info.job.attempt = f"; {recipe.cure(rule.name)}", rule.restart_times + 1
            name = failure_name(rule.name, info.job.wildcards_dict, plan)
            words = f"Slurm did not accept the job: {error}{cure}"
            failures.note(plan.results, name, verdict(error)[0], words)
        report(self, info, msg, **named)

    return report_job_error
