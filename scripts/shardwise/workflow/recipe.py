"""What the profile asks a scheduler for: the recipe of an array job, looked at before any job."""

import contextlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from shardwise.dispatch.array.recipe import RULE, TaskRequest, path
from shardwise.dispatch.schedulers import grid_engine, slurm
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results

_SCHEDULERS = {"slurm": "slurm", "shardwise-grid-engine": "uge"}
"""By the executor of the profile."""


def write(results: Results, workflow: Any, job: Any) -> None:
    """Note what the profile says of a task of this job of Snakemake's, which submits the arrays.

    Raises InputError if the scheduler, which looks at it, would not take such tasks.
    """
    scheduler = _scheduler(workflow)
    attempts = range(1, workflow.execution_settings.retries + 2)
    tries = [_at_attempt(job, attempt) for attempt in attempts]
    words = [_words(scheduler, one, workflow) for one in tries]
    verify(scheduler, RULE, tries[0].resources, words[0])
    recipe = TaskRequest(
        scheduler=scheduler,
        words=words,
        memory=[one.resources.get("mem_mb") for one in tries],
        setup=workflow.remote_execution_settings.precommand or "",
    )
    from shardwise.files.commit import commit  # here: jobs do not need it

    with commit(path(results)) as file:
        file.write(json.dumps(asdict(recipe)).encode())


def _scheduler(workflow: Any) -> str:
    """The scheduler of the profile; under one that names none, what this machine has."""
    executor = workflow.executor_plugin.name
    if executor in _SCHEDULERS:
        return _SCHEDULERS[executor]
    commands = {"sbatch": "slurm", "qsub": "uge"}
    return next((name for command, name in commands.items() if shutil.which(command)), "")


def _at_attempt(job: Any, attempt: int) -> Any:
    """A job as Snakemake would submit it at an attempt; memory and run time grow."""
    resources = job.rule.expand_resources(
        job.wildcards_dict, job.input, attempt, skip_evaluation={"tmpdir"}
    )
    return SimpleNamespace(resources=resources, threads=resources["_cores"], name=job.rule.name)


def _words(scheduler: str, job: Any, workflow: Any) -> list[str]:
    if scheduler == "slurm":
        if any(job.resources.get(key) for key in ("cluster", "clusters", "slurm_cluster")):
            raise InputError("dispatch: array works within one cluster of Slurm; see slurm_cluster")
        return slurm_words(job, workflow)
    return grid_engine.site_words(job.resources) if scheduler == "uge" else []


def slurm_words(job: Any, workflow: Any) -> list[str]:
    """What the Slurm plugin would say to sbatch, by its own functions."""
    from snakemake_executor_plugin_slurm import partitions, submit_string, utils, validation
    from snakemake_interface_common.exceptions import WorkflowError

    by_plugin = workflow.executor_plugin.name == "slurm"
    settings = workflow.executor_settings if by_plugin else None
    partition = job.resources.get("slurm_partition")
    if not partition and settings is not None and settings.partition_config:
        table = partitions.read_partition_file(settings.partition_config)
        partition = partitions.get_best_partition(table, job, workflow.logger)
    account = job.resources.get("slurm_account")
    # Names and outputs are the array's matter: what stands before the comment is left out.
    parts = {"run_uuid": "-", "slurm_logfile": "-", "comment_str": "-", "workdir": None}
    parts["account"] = f" -A {shlex.quote(str(account))}" if account else ""
    parts["partition"] = f" -p {shlex.quote(str(partition))}" if partition else ""
    try:
        validation.validate_slurm_extra(job)
        text = submit_string.get_submit_command(job, parts, settings=settings)
        words = shlex.split(text + utils.set_gres_string(job))
    except WorkflowError as error:
        raise InputError(f"the resources of rule {job.name} in the profile: {error}") from None
    words = ["--export=ALL", *words[words.index("--comment") + 2 :]]
    # Where the profile is silent, a task of a lost node is tried again by who submits.
    return words if {"--requeue", "--no-requeue"} & {*words} else [*words, "--no-requeue"]


def verify(
    scheduler: str, rule: str, resources: Mapping[str, Any], words: Sequence[str] = ()
) -> None:
    """Have the scheduler look at what jobs of a rule ask for; one that is away is waited for later.

    The words are for sbatch; those for qsub follow from the resources. Raises InputError if the
    scheduler would not take such jobs.
    """
    try:
        with contextlib.suppress(TryAgain):
            if scheduler == "slurm":
                slurm.verify(words)
            elif scheduler == "uge":
                grid_engine.verify(resources)
    except InputError as error:
        raise InputError(
            f"the scheduler would not take the jobs of rule {rule}: {error}; {cure(rule)}"
        ) from None


def cure(rule: str) -> str:
    """What a user can change about the jobs of a rule that the scheduler does not take."""
    return f"change the block {rule}, or default-resources, in config.yaml of the profile"
