"""What the profile asks a scheduler for, as options of sbatch or qsub, checked before any job.

Under ``dispatch: array`` one local job submits the tasks, not Snakemake itself. But only the main
process knows what a task asks for, so it writes that request to a file just before the first job.
"""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import CACHE, Results
from shardwise.plan import plan
from shardwise.work import grid_engine, slurm
from shardwise.work.array import Request

SCHEDULERS = {"slurm": "slurm", "shardwise-grid-engine": "uge"}
"""Our names of the schedulers, by the executor of the profile."""

_UNKNOWN = re.compile(r'unknown (resource|queue) "|does not exist|invalid option')
"""Errors in the options for qsub themselves, which no change of the hosts would mend."""


def path(results: Results) -> Path:
    """The file in which the main process leaves the request for the job that submits the array."""
    return CACHE / f"{plan.digest(str(results.root))}.request.json"


def write(results: Results, workflow: Any, job: Any) -> None:
    """Write down what each task of an array asks for; ``job`` is Snakemake's job that submits it.

    Raises InputError if the profile has no scheduler, or it would not take such tasks.
    """
    from shardwise.files.commit import commit  # here: jobs do not need it

    scheduler = SCHEDULERS.get(workflow.executor_plugin.name)
    if scheduler is None:
        raise InputError(
            "dispatch: array needs a profile that submits to Slurm or Grid Engine, such as "
            "profiles/slurm; dispatch: pool computes on the GPUs of this machine"
        )
    tries = []
    for attempt in range(1, workflow.execution_settings.retries + 2):  # memory and run time grow
        asked = job.rule.expand_resources(
            job.wildcards_dict, job.input, attempt, skip_evaluation={"tmpdir"}
        )
        tries.append(SimpleNamespace(resources=asked, threads=asked["_cores"], name=job.rule.name))
    verify(scheduler, tries[0], workflow)
    request = Request(
        scheduler=scheduler,
        words=[_words(scheduler, one, workflow) for one in tries],
        memory=[one.resources.get("mem_mb") for one in tries],
        setup=workflow.remote_execution_settings.precommand or "",
    )
    with commit(path(results)) as file:
        file.write(json.dumps(asdict(request)).encode())


def _words(scheduler: str, job: Any, workflow: Any) -> list[str]:
    """What a job asks for; for Slurm in the words of its plugin, made by its own functions."""
    if scheduler == "uge":
        return site_words(job.resources)
    from snakemake_executor_plugin_slurm import submit_string, utils, validation
    from snakemake_interface_common.exceptions import WorkflowError

    # The array sets its own name and output: all options up to the comment are left out.
    parts = {"run_uuid": "-", "slurm_logfile": "-", "comment_str": "-", "workdir": None}
    for name, option in ("account", "-A"), ("partition", "-p"):
        own = job.resources.get(f"slurm_{name}")
        parts[name] = f" {option} {shlex.quote(str(own))}" if own else ""
    try:
        validation.validate_slurm_extra(job)
        text = submit_string.get_submit_command(job, parts, settings=workflow.executor_settings)
        words = shlex.split(text + utils.set_gres_string(job))
    except WorkflowError as error:
        raise InputError(f"the resources of rule {job.name} in the profile: {error}") from None
    return ["--export=ALL", *words[words.index("--comment") + 2 :]]


def site_words(resources: Mapping[str, Any]) -> list[str]:
    """The options for qsub from the profile's resources ``uge_*``, with placeholders filled in.

    Raises InputError if a placeholder is unknown, or the job has no value for it.
    """
    sources = {"ranks": ("tasks", 1), "seconds": ("runtime", 60), "mib": ("mem_mb", 1)}
    values = {
        name: int(resources[key]) * factor
        for name, (key, factor) in sources.items()
        if resources.get(key) is not None
    }
    texts = [(name, str(text)) for name, text in sorted(resources.items()) if name[:4] == "uge_"]
    if "mib" in values:
        slots = re.search(r"-pe \S+ (\d+|{ranks})", " ".join(text for _, text in texts))
        count = int(slots[1].format(ranks=values.get("ranks", 1))) if slots else 1
        values["mib_per_slot"] = -(-values["mib"] // max(1, count))
    words: list[str] = []
    for name, text in texts:
        try:
            words += shlex.split(text.format_map(values))
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(
                f"{name}: {text!r} in the profile cannot be filled in ({error}); this job "
                f"knows {', '.join(f'{{{value}}}' for value in values)}"
            ) from None
    return words


def verify(scheduler: str, job: Any, workflow: Any) -> None:
    """Have the scheduler check what a job asks for; skip this if it does not answer.

    Raises InputError if the scheduler would not take such jobs, or has no client here.
    """
    client = "sbatch" if scheduler == "slurm" else "qsub"
    if not shutil.which(client):
        raise InputError(
            f"the profile submits jobs with {client}, which is not on PATH here; give "
            "the command on a login node, load the scheduler's module, or take --profile local"
        )
    words = _words(scheduler, job, workflow)
    try:
        with suppress(TryAgain):
            if scheduler == "slurm":
                slurm.verify(words)
            else:
                grid_engine.call("qsub", "-b", "y", *words, "-w", "v", "/bin/true", seconds=10.0)
    except InputError as error:
        # Grid Engine's errors about hosts do not count: it knows no host that is away, and no load
        # such as mem_free.
        if scheduler == "slurm" or _UNKNOWN.search(str(error)):
            raise InputError(
                f"the scheduler would not take the jobs of rule {job.name}: {error}; "
                f"{cure(job.name)}"
            ) from None


def cure(rule: str) -> str:
    """What a user can change about the jobs of a rule that the scheduler does not take."""
    return f"change the block {rule}, or default-resources, in config.yaml of the profile"
