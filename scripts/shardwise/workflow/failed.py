"""The failures of this run, as files: a failed job writes its own, else the main process does."""

from typing import TYPE_CHECKING, Any

from shardwise.errors import InputError, ShardwiseError, TryAgain
from shardwise.records import failures
from shardwise.records.failures import Failure
from shardwise.work import claims
from shardwise.workflow import recipe

if TYPE_CHECKING:
    from shardwise.workflow.run import Run


def name_of(run: "Run", job: Any) -> str:
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


def of_job(run: "Run", job: Any) -> Failure | None:
    """The failure of a job in this run; opened by path, as a network disk lists new names late."""
    failure = failures.read(run.results.failure(name_of(run, job)))
    return failure if failure and failure.run == failures.this_run() else None


def note(run: "Run", job: Any, reason: str) -> None:
    """Write down why a job has failed, unless the job has done so itself."""
    if of_job(run, job) is None:
        failures.note(run.results, name_of(run, job), TryAgain.exit_code, reason)


def note_refused(run: "Run", job: Any, title: str, error: ShardwiseError) -> None:
    """Write down that a scheduler refused a job."""
    cure = f"; {recipe.cure(job.rule.name)}" if isinstance(error, InputError) else ""
    reason = f"{title} did not accept the job: {error}{cure}"
    failures.note(run.results, name_of(run, job), error.exit_code, reason)
