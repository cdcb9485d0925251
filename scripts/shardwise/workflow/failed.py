"""The failures of this run, as files: a failed job writes its own, else the main process does."""

import re
from typing import Any

from shardwise.errors import InputError, TryAgain, one_line
from shardwise.records import failures
from shardwise.records.failures import Failure
from shardwise.work import claims, slurm
from shardwise.workflow import recipe

REFUSED, SAYS = "did not accept the job. The error message was ", "the scheduler says "
"""What begins the message of an executor about a job that was refused, or that did not end well."""

_REFUSED = re.compile(r"The error message was '?(.*?)'?\.?\n? *(sbatch call:|$)", re.DOTALL)
_STATUS = re.compile(r"status is: '?((?!FAILED)[A-Z_]+)")  # FAILED: it has ended by itself
_NO_WORD = "it left no message: killed, lost with its node, or never started"


def name_of(run: Any, job: Any) -> str:
    """The name of the failure of a Snakemake job, whose rule a module may have renamed.

    A job that computes all shards notes its failure under the name that its workers use, too.
    """
    stage, wildcards = run.stages.get(job.rule.name, job.rule.name), job.wildcards_dict
    if "shard" in wildcards:
        before = "copy-" if stage == "shard" else ""
        return f"{before}{wildcards['shard']}-{wildcards['key']}"
    if job.rule.name == run.rule_for_all:
        return claims.worker_failure(run.plan)
    return f"{stage}-{run.plan.key}"


def of_job(run: Any, job: Any) -> Failure | None:
    """The failure of a job in this run; opened by path, as a network disk lists new names late."""
    failure = failures.read(run.results.failure(name_of(run, job)))
    return failure if failure and failure.run == failures.this_run() else None


def note(run: Any, job: Any, said: str) -> Failure | None:
    """The failure of a job; if it has left none, note what its executor has said of it."""
    if found := of_job(run, job):
        return found
    said = said.partition("For further error details")[0].strip()  # Snakemake adds this
    code, reason = TryAgain.exit_code, _NO_WORD
    if refused := _REFUSED.search(said):
        error = slurm.Slurm().refusal(one_line(refused[1].strip()), 1)
        cure = f"; {recipe.cure(job.rule.name)}" if isinstance(error, InputError) else ""
        code, reason = error.exit_code, f"the scheduler did not accept the job: {error}{cure}"
    elif status := _STATUS.search(said):
        reason = f"{SAYS}{status[1]}"
    elif said.startswith(SAYS):
        reason = said
    failures.note(run.results, name_of(run, job), code, reason)
    return of_job(run, job)
