"""What a scheduler is asked before any job: if it takes our options and names, what still lives.

When Snakemake is killed, its jobs live on, and a second job for the same shard would cost twice. So
a run does not start beside living jobs. Those that run hold a lock on a file of the results folder;
those that wait have names that were noted there before they were submitted.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from shardwise.errors import InputError, ShardwiseError, TryAgain, short
from shardwise.files.paths import Results
from shardwise.records.locks import holders, is_job_locked, take_lock
from shardwise.work import schedulers

SCHEDULERS = {"slurm": "slurm", "shardwise-grid-engine": "uge"}
"""Our names of the schedulers, by the executor of the profile."""

NO_ARRAY = (
    "dispatch: array needs a profile that submits to Slurm or Grid Engine, such as profiles/slurm; "
    "dispatch: pool computes on the GPUs of this machine"
)
_ODD = re.compile(r"""["'$`\\]|%[0-9]*[A-Za-z%]|^-""")

_WRONG = {
    "slurm": re.compile(
        "invalid|unrecognized|unknown|not permitted|node configuration is not available",
        re.IGNORECASE,
    ),
    # Its errors about hosts do not count: it knows no host that is away, and no load like mem_free.
    "uge": re.compile('unknown (resource|queue) "|does not exist|invalid option'),
}
"""What a scheduler says of requests that it never takes."""

_MOST_NAMES = 1000  # jobs that were noted before these have ended, else no run would have begun

_locked: list[BinaryIO] = []
"""Files whose locks this process holds to its end."""


def of_array(workflow: Any, resources: Any) -> str:
    """What `dispatch` must know of the scheduler, to submit tasks that ask for these resources."""
    job = SimpleNamespace(resources=resources, threads=resources["_cores"], name="multiply")
    setup = workflow.remote_execution_settings.precommand or ""
    with suppress(InputError, KeyError):  # `verify` says before the first job what is wrong
        scheduler = SCHEDULERS[workflow.executor_plugin.name]
        words = shlex.join(_words(scheduler, job, workflow))
        return shlex.join([f"--scheduler={scheduler}", f"--setup={setup}", f"--job={words}"])
    return ""  # as in a dry run


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


def run_time(resources: Mapping[str, Any]) -> int | None:
    """Seconds that a job with these resources may run; None if no option says how long."""
    own = site_words(resources)
    if not own:  # Slurm's plugin asks for what the resource says
        return 60 * int(resources["runtime"])
    # As 90 or 1:2:3; a part that is 0 may be left out, as in 1:: for an hour.
    limits = re.findall(r"\b[hs]_rt=(?:(\d*):(\d*):)?(\d*)", " ".join(own))
    seconds = [int(h or 0) * 3600 + int(m or 0) * 60 + int(s or 0) for h, m, s in limits]
    return min(filter(None, seconds), default=None)


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


def verify(scheduler: str | None, job: Any, workflow: Any) -> None:
    """Have the scheduler check what a job asks for; skip this if it does not answer.

    Raises InputError if there is none, it would not take such jobs, or has no client here.
    """
    if scheduler is None:
        raise InputError(NO_ARRAY)
    words = _words(scheduler, job, workflow)
    command = ["qsub", "-b", "y", *words, "-w", "v", "/bin/true"]
    if scheduler == "slurm":
        command = ["sbatch", *words, "--test-only", "--output=/dev/null", "--wrap=true"]
    schedulers.need(command[0])
    try:
        with suppress(TryAgain):
            schedulers.call(*command, seconds=10.0)
    except InputError as error:
        if _WRONG[scheduler].search(str(error)):  # other errors concern this moment only
            raise refused(job.name, error) from None


def refused(rule: str, error: ShardwiseError) -> ShardwiseError:
    """The error for jobs of a rule that the scheduler does not take, with its own error."""
    cure = f"; change the block {rule}, or default-resources, in config.yaml of the profile"
    words = f"the scheduler does not take the jobs of rule {rule}: {error}"
    return type(error)(words + cure * isinstance(error, InputError))


def refuse_odd(workflow: Any, config: Mapping[str, Any], results: Results) -> None:
    """Raise InputError if a name of this run would not reach a scheduler's job unchanged.

    Snakemake's executors write a job's command for a shell with names quoted as Python quotes them;
    the Slurm plugin puts that into double quotes once more. Slurm also expands ``%j`` and the like.
    We cannot change any of this, so one rule holds for every scheduler.
    """
    places = {
        "the working directory": os.getcwd(), "the Snakefile": workflow.main_snakefile,
        "the config file": workflow.overwrite_configfiles, **config, "results": results.root,
    }  # fmt: skip
    for what, value in places.items():
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(name, (str, Path)) and (odd := find_odd(str(name))):
                raise InputError(
                    f"{what} {short(str(name))} holds {odd!r}, but schedulers pass names to a "
                    "shell: no name may begin with a dash, or hold a quote, $, `, \\, % before a "
                    "letter, or a character that cannot be printed; rename it, or run with "
                    "profiles/local"
                )
    if shlex.quote(sys.executable) != sys.executable:
        raise InputError(
            f"schedulers would not quote {short(sys.executable)}; move the environment"
        )


def find_odd(name: str) -> str:
    """The part of a name that a shell or a scheduler would not take literally; empty if none."""
    odd = _ODD.search(name)
    return odd[0] if odd else next((c for c in name if not c.isprintable()), "")


def lock_results(results: Results) -> None:
    """Become the only run on these results until this process ends; else raise TryAgain.

    So it does if jobs of an earlier run still wait or work, or a scheduler is silent.
    """
    busy = f"another run works on {results.root}; let it finish, then give the same command again."
    with suppress(OSError):  # a folder that cannot be written: the first job reports it
        _locked.append(take_lock(results.running, busy))
    cancel = text = ""
    with suppress(OSError):  # no job was noted
        text = results.runs.read_text(encoding="utf-8", errors="replace")
    for scheduler, client in schedulers.CLIENTS.items():
        noted = re.findall(rf"^{scheduler}\t(\w[\w.-]*)[\t\n]", text, re.ASCII | re.MULTILINE)
        names = sorted(set(noted[-_MOST_NAMES:]))
        if names and shutil.which(client) and (living := schedulers.living(scheduler, names)):
            jobs = dict.fromkeys(number.partition("_")[0] for number in living)  # of arrays once
            cancel = f" ({'scancel' if scheduler == 'slurm' else 'qdel'} {' '.join(jobs)})"
    if cancel or is_job_locked(results.living):
        if here := holders(results.living):
            cancel += f" (on this machine: kill {' '.join(here)})"
        raise TryAgain(
            f"jobs of an earlier run still wait or work on {results.root}. Let them finish (see: "
            f"squeue --me, qstat, or ps), or cancel them{cancel}; then run the same command again."
        )
    shutil.rmtree(results.claims, ignore_errors=True)  # those of a run that was killed
