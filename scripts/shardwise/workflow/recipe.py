"""What the profile asks a scheduler for, as options of sbatch or qsub, checked before any job.

Under ``dispatch: array`` one local job submits the tasks, not Snakemake itself. But only the main
process knows what a task asks for, so it writes that request to a file just before the first job.
"""

import difflib
import json
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
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

RULE = "multiply"
"""The rule whose resources an array task asks for."""

SCHEDULERS = {"slurm": "slurm", "shardwise-grid-engine": "uge"}
"""Our names of the schedulers, by the executor of the profile."""

_CLIENTS = {"slurm": "sbatch", "uge": "qsub"}
_WORDS = "uge_"  # resources whose names begin with this hold options for qsub
_UNKNOWN = re.compile(r'unknown (resource|queue) "|does not exist|invalid option')
"""Errors in the options for qsub themselves, which no change of the hosts would mend."""

_KNOWN = (
    *("_cores", "_nodes", "threads", "runtime", "tmpdir", "mpi", "nodes", "gres", "constraint"),
    *("mem", "mem_mb", "mem_mib", "mem_mb_per_cpu", "disk", "disk_mb", "disk_mib", "qos"),
    *("tasks", "tasks_per_node", "tasks_per_gpu", "cpus_per_task", "cpus_per_gpu"),
    *("gpu", "gpu_model", "slurm_account", "slurm_partition", "slurm_extra"),
    *("slurm_cluster", "cluster", "clusters"),
)
"""The resources that Snakemake and its Slurm plugin know; for Grid Engine see `_WORDS`."""
_OF_GPUS = re.compile(r"gpu: [^0]|(gres|uge_\w+): .*(gpu|cuda)")


def path(results: Results) -> Path:
    """The file in which the main process leaves the request for the job that submits the array."""
    return CACHE / f"{plan.digest(str(results.root))}.request.json"


def write(results: Results, workflow: Any, job: Any) -> None:
    """Write down what each task of an array asks for; ``job`` is Snakemake's job that submits it.

    Raises InputError if the scheduler would not take such tasks, or a cluster is named.
    """
    from shardwise.files.commit import commit  # here: jobs do not need it

    here = (name for name, client in _CLIENTS.items() if shutil.which(client))
    scheduler = SCHEDULERS.get(workflow.executor_plugin.name) or next(here, "")
    tries = []
    for attempt in range(1, workflow.execution_settings.retries + 2):  # memory and run time grow
        asked = job.rule.expand_resources(
            job.wildcards_dict, job.input, attempt, skip_evaluation={"tmpdir"}
        )
        tries.append(SimpleNamespace(resources=asked, threads=asked["_cores"], name=job.rule.name))
    if any(tries[0].resources.get(key) for key in ("cluster", "clusters", "slurm_cluster")):
        raise InputError("dispatch: array works in one Slurm cluster; name none (slurm_cluster)")
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
    """What a job asks for, in the scheduler's words."""
    if scheduler == "slurm":
        return slurm_words(job, workflow)
    return site_words(job.resources) if scheduler == "uge" else []


def slurm_words(job: Any, workflow: Any) -> list[str]:
    """The options that the Slurm plugin would give to sbatch, made by its own functions."""
    from snakemake_executor_plugin_slurm import partitions, submit_string, utils, validation
    from snakemake_interface_common.exceptions import WorkflowError

    by_plugin = workflow.executor_plugin.name == "slurm"
    settings = workflow.executor_settings if by_plugin else None
    partition = job.resources.get("slurm_partition")
    if not partition and settings is not None and settings.partition_config:
        table = partitions.read_partition_file(settings.partition_config)
        partition = partitions.get_best_partition(table, job, workflow.logger)
    account = job.resources.get("slurm_account")
    # The array sets its own name and output: all options up to the comment are left out.
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
    # Unless the profile decides, the job that submits tries a task of a lost node again.
    return words if {"--requeue", "--no-requeue"} & {*words} else [*words, "--no-requeue"]


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
    if "mib" not in values:
        return _filled(resources, values)
    # The memory of a slot is known once the number of slots is.
    words = " ".join(_filled(resources, {**values, "mib_per_slot": 0}))
    slots = re.search(r"(?:^|\s)-pe \S+ (\d+)", words)
    values["mib_per_slot"] = -(-values["mib"] // max(1, int(slots[1]) if slots else 1))
    return _filled(resources, values)


def _filled(resources: Mapping[str, Any], values: Mapping[str, int]) -> list[str]:
    words: list[str] = []
    texts = ((name, str(text)) for name, text in resources.items() if name.startswith(_WORDS))
    for name, text in sorted(texts):
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
    client = _CLIENTS.get(scheduler)
    if client and not shutil.which(client):
        raise InputError(
            f"the profile submits jobs with {client}, which is not on PATH here; give "
            "the command on a login node, load the scheduler's module, or take --profile local"
        )
    words = _words(scheduler, job, workflow)
    try:
        with suppress(TryAgain):
            if scheduler == "slurm":
                slurm.verify(words)
            elif scheduler == "uge":
                grid_engine.call("qsub", "-b", "y", *words, "-w", "v", "/bin/true", seconds=10.0)
    except InputError as error:
        # Grid Engine's errors about hosts do not count: it knows no host that is away, and no load
        # such as mem_free.
        if scheduler == "slurm" or _UNKNOWN.search(str(error)):
            raise InputError(
                f"the scheduler would not take the jobs of rule {job.name}: {error}; "
                f"{cure(job.name)}"
            ) from None


def doubts(workflow: Any, stages: Collection[str], computes: str, backend: str) -> Iterator[str]:
    """Warnings about entries of a profile that probably have no effect, a sentence each.

    ``stages`` are our rules under every dispatch; ``computes`` is the one whose jobs multiply.
    """
    settings = workflow.resource_settings
    rules = {*stages, *(rule.name for rule in workflow.rules)}
    for rule in settings.overwrite_resources:
        if rule not in rules:
            yield f"profile: set-resources: {rule} is not a rule{_near(rule, rules)}"
    known = {*_KNOWN, *settings.resources}
    blocks = {f"set-resources, {rule}": own for rule, own in settings.overwrite_resources.items()}
    for block, own in {**blocks, "default-resources": settings.default_resources or {}}.items():
        # A name unlike any known one may belong to another executor or a command of the site.
        for name in sorted({*own} - known):
            if (near := _near(name, known)) and not name.startswith(_WORDS):
                yield f"profile: {block}: {name} is not a known resource{near}"
    for name, asked in settings.overwrite_resources.get(computes, {}).items():
        word = f"{name}: {getattr(asked, 'raw', asked)}"
        if backend == "numpy" and _OF_GPUS.match(word):
            yield (
                f"profile: set-resources, {computes}: {word} asks for GPUs, and backend: numpy "
                "uses none; remove that line, or set backend: cupy in the config"
            )


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def cure(rule: str) -> str:
    """What a user can change about the jobs of a rule that the scheduler does not take."""
    return f"change the block {rule}, or default-resources, in config.yaml of the profile"
