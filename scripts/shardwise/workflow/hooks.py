"""All changes to Snakemake's behavior, but for Grid Engine, and useless tries (progress.py).

Each function says what Snakemake assumes, what we need, and how we get it.
"""

import functools
import logging
import math
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from snakemake.path_modifier import PathModifier
from snakemake.settings.types import DeploymentMethod

from shardwise import errors, host
from shardwise.errors import InputError, TryAgain
from shardwise.files import small
from shardwise.host import SCRIPTS
from shardwise.processes import contain
from shardwise.records import failures
from shardwise.work import schedulers
from shardwise.workflow import grid_engine_executor, preflight

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s
_LAST_WORDS = os.environ.pop(host.LAST_WORDS, "")  # no other process has this open file

_SHOWN = re.compile("shardwise: |Nothing to be done|Complete log|Terminating|Shutting down")


def refuse(error: BaseException) -> NoReturn:
    """End with the exit code of an error. Snakemake's logger says nothing under ``--quiet all``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would only add a traceback
    code, words = errors.verdict(error)
    tell_last(words)
    sys.exit(code)


def tell_last(text: str, before: str = "") -> None:
    """Tell the last words of a run, also to the Python program that has begun it, if one has."""
    errors.tell(before + text)
    if _LAST_WORDS:
        with suppress(OSError):  # its disk may be full
            os.write(int(_LAST_WORDS), errors.shown(text).encode(errors="replace"))


def refuse_repeated(words: Sequence[str]) -> None:
    """Snakemake believes that a second ``--configfile`` or ``--config`` replaces the first.

    We need no config file and no key to be dropped without a word. Raises InputError.
    """
    for name, typed in (("--configfile", "--configfiles?(=|$)"), ("--config", "--config(=|$)|-C")):
        if sum(re.match(typed, word) is not None for word in words) > 1:
            raise InputError(f"{name} is given more than once; give it once, with all values")


def apply_prefix(workflow: Any, results: str) -> str:
    """Snakemake assumes that ``prefix:`` of a module renames each file that a rule names.

    We need names that our scripts know, and an input that stays where it is. So the prefix moves
    only the results folder, whose new name is returned.
    """
    modifier = workflow.modifier
    moved = str(modifier.path_modifier.replace_prefix(results))
    modifier.path_modifier = PathModifier(None, None, workflow)
    return moved


def hasten() -> None:
    """Snakemake inspects a function anew for each job, and outlives its last job by a second.

    We need the graph of 10,000 jobs soon: to inspect a function once saves a tenth of that time.
    The second is that of the timers of its limit of jobs per second: they become daemon threads.
    """
    from snakemake import common, jobs, rules
    from snakemake.scheduling.job_scheduler import JobScheduler  # it is slow to import

    def look_again(scheduler: JobScheduler, delay: float) -> None:
        timer = threading.Timer(delay, scheduler._open_jobs.release)
        timer.daemon = True
        timer.start()

    JobScheduler._schedule_reevalutation = look_again
    known = functools.cache(common.get_function_params)
    for module in (common, jobs, rules):
        module.get_function_params = known


def before_jobs(workflow: Any, run: Any) -> None:
    """Check and set up what a run needs just before its first job; exit if it may not begin.

    A dry run only learns if a name would mislead the scheduler, or if there is none. It has another
    executor, but its ``use_threads`` comes from that of the profile: it is true unless jobs run on
    this machine.
    """
    settings = workflow.resource_settings
    try:
        if 0 in (settings.cores, settings.nodes):  # Snakemake would wait for them forever
            raise InputError("no job could start with 0 cores or jobs; name at least 1, or all")
        needed = list(workflow.dag.needrun_jobs())
        own = [job for job in needed if job.rule.name == run.rule_for_all]
        if workflow.execution_settings.use_threads:
            preflight.refuse_odd(workflow, run.config, run.results)
        elif own and run.dispatch == "array":
            if not workflow.dryrun:
                raise InputError(preflight.NO_ARRAY)
            log.warning(f"shardwise: a run would be refused: {preflight.NO_ARRAY}")
        if workflow.dryrun:
            return
        host.announce()
        contain.clear_stray()
        os.environ["PYTHONSAFEPATH"] = "1"  # Snakemake in jobs must import no file of this folder
        small.mark(run.results)
        preflight.lock_results(run.results)
        failures.forget_devices(run.results)
        # It has made these jobs run; now it must be older than their outputs, else they fail.
        os.utime(run.anew[0], (0, 0))
        if any(str(run.results.plan) in map(str, job.output) for job in needed):
            from shardwise.plan import planner  # here: jobs do not need it

            planner.write(replace(run.plan, results=run.planned))
        scheduler = preflight.SCHEDULERS.get(workflow.executor_plugin.name)
        jobs = {job.rule: job for job in needed if scheduler and not job.is_local}
        # Else a wrong reduce would only show once all shards are done.
        for job in [*jobs.values(), *(own if run.dispatch == "array" else [])]:
            preflight.verify(scheduler, job, workflow)
        if jobs:
            begin = {"slurm": heed_silence, "uge": grid_engine_executor.begin}[scheduler]
            begin(run, workflow.scheduler.get_executor(next(iter(jobs.values()))))
        if own and run.forces and not workflow.touch:
            for shard in run.to_compute:  # without it the product counts as missing
                run.results.receipt(run.plan.shards[shard].name).unlink(missing_ok=True)
    except (InputError, TryAgain, OSError) as error:
        refuse(error)


def heed_silence(run: Any, executor: Any) -> None:
    """Snakemake's Slurm plugin (2.8) drops all jobs about which it asked if Slurm does not answer.

    We need each job to be followed to its end, also while the controller restarts. So no answer
    becomes an answer that names no job: then the plugin asks again.
    """
    schedulers.remember(run.results, "slurm", executor.run_uuid)  # the name of all its jobs
    plugin = sys.modules["snakemake_executor_plugin_slurm"]
    # If Slurm does not say how long it remembers ended jobs, the plugin would ask sacct: forever,
    # without accounting.
    seconds = plugin.get_min_job_age
    plugin.get_min_job_age = lambda: seconds() or math.inf
    ask, silent = plugin.query_job_status, False

    async def none_if_unheard(*words: Any) -> tuple[dict[str, str], float]:
        nonlocal silent
        states, took = await ask(*words)
        if states is None and not silent:
            log.warning("shardwise: Slurm does not answer; asking again")
        silent = states is None
        return ({}, 0.0) if silent else (states, took)

    plugin.query_job_status = none_if_unheard


def show_less(workflow: Any) -> None:
    """Snakemake assumes that messages hold nothing but text, and that all read them.

    No name may steer the terminal, so messages are escaped. (Snakemake adds its colors later.) We
    need about ten lines on the screen, and every event in the log. So the profiles are quiet
    about rules only, the file's filter lets everything through, and the screen gets warnings,
    errors, and the messages that match `_SHOWN`.
    """
    warnings.filterwarnings("ignore", "coroutine 'InputFiles", RuntimeWarning)  # Snakemake's own
    quiet = "RULES" in {word.name for word in workflow.output_settings.quiet or ()}
    runs = False  # else --list-rules or the like

    def on_screen(record: logging.LogRecord) -> bool:
        nonlocal runs
        text = record.getMessage()
        runs |= getattr(getattr(record, "event", None), "value", "") == "workflow_started"
        if record.levelno > logging.INFO:  # why a job failed, `progress` says in one line
            return not text.startswith(("RuleException:\nCalledProcessError", "--keep-incomplete"))
        return _SHOWN.match(text) is not None if runs else not text.startswith("Assuming")

    for handler in log.handlers:
        handler.format = lambda record, format=handler.format: errors.shown(format(record))
        if quiet and isinstance(handler, logging.FileHandler):
            for part in (*handler.filters, handler.formatter):
                part.quiet = set()  # type: ignore[union-attr]
        elif quiet and handler.name == "DefaultStreamHandler":
            handler.filters.insert(0, on_screen)  # before Snakemake's own, to see every event


def shell_prefix(deployment: Collection[DeploymentMethod] = ()) -> str:
    """What every job's shell begins with: strict mode, which Python, where the scripts are.

    The Python is the one that runs Snakemake, unless ``--sdm conda`` gives each job its own.
    """
    # Snakemake formats the prefix like every command: braces in a name are doubled.
    python, scripts = (
        shlex.quote(str(path).replace("{", "{{").replace("}", "}}"))
        for path in (Path(sys.executable).parent, SCRIPTS)
    )
    path = "" if DeploymentMethod.CONDA in deployment else f'PATH={python}:"$PATH" '
    return f"set -euo pipefail; unset PYTHONSAFEPATH; export {path}SCRIPTS={scripts}; "
