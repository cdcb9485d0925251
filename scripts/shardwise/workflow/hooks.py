"""All tricks played on Snakemake, except those on single executors, which have their own files."""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from snakemake.path_modifier import PathModifier
from snakemake.settings.types import DeploymentMethod
from snakemake_interface_executor_plugins.executors.real import RealExecutor

from shardwise import errors, host
from shardwise.errors import (
    InputError,
    ShardwiseError,
    TryAgain,
    of_code,
    one_line,
    verdict,
)
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.host import SCRIPTS
from shardwise.processes import environment
from shardwise.records import failures
from shardwise.workflow import earlier_runs, grid_engine_executor, progress, recipe, slurm_executor

if TYPE_CHECKING:
    from shardwise.workflow.run import Run

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_PAGE_SECONDS = 120.0
"""The most time for the page on a failed run; 100,000 shards take less than a minute."""

_THREADS = 32
"""Threads and processes that the smallest run has at a time, with those of its one job."""

_SHOWN = re.compile("shardwise: |Nothing to be done|Complete log|Terminating|Shutting down")


def refuse(error: ShardwiseError | ImportError) -> NoReturn:
    """End with the exit code of an error. Snakemake's logger says nothing under ``--quiet all``."""
    code, words = errors.verdict(error)
    errors.tell(words)
    sys.exit(code)


def apply_prefix(workflow: Any, results: str) -> str:
    """Snakemake believes that ``prefix:`` of a module renames each file that a rule names.

    We need names that our scripts know, and an input that stays where it is. So the prefix moves
    the results folder, whose name comes back, and nothing else.
    """
    modifier = workflow.modifier
    moved = str(modifier.path_modifier.replace_prefix(results))
    modifier.path_modifier = PathModifier(None, None, workflow)
    return moved


def start_apart() -> None:
    """Snakemake believes that the folder in which a scheduler's job starts holds no modules.

    We need files there to be data, whatever their names. So the job's Python, which another job's
    Snakemake may start in turn, does not look there.
    """
    form = RealExecutor.format_job_exec

    def formatted(executor: Any, job: Any) -> str:
        return form(executor, job).replace(" -m snakemake ", " -P -m snakemake ", 1)

    RealExecutor.format_job_exec = formatted


def around_graph(workflow: Any, check: Callable[[bool], None]) -> None:
    """Snakemake believes that who submits jobs matters to nobody before the first of them.

    We need to refuse what no scheduler could be given, also in a dry run, whose executor is the dry
    one. But it uses threads as the profile's own executor would: always, unless jobs run here.

    And it believes its own records of how each file was made, where the profile does not say
    otherwise. We need the names of our files to count. So there are no records of our jobs.
    """
    prepare = workflow._prepare_dag
    rules = workflow.current_basedir.get_path_or_uri(secret_free=True)  # no folder in a git source

    def prepared(*args: Any, **named: Any) -> None:
        settings = workflow.execution_settings  # None where no job is asked for
        try:
            check(settings is not None and settings.use_threads)
        except InputError as error:
            refuse(error)
        prepare(*args, **named)
        has_metadata = workflow.persistence.has_metadata
        workflow.persistence.has_metadata = lambda job: (
            str(job.rule.basedir) != rules and has_metadata(job)
        )

    workflow._prepare_dag = prepared


def add_hooks(workflow: Any, run: "Run") -> None:
    """Snakemake believes that the hooks of the first Snakefile are all there are.

    We need ours in a module as well. So they are put around whatever that Snakefile sets, before or
    after.
    """
    _heed_interrupts(run)
    acts = {
        "onstart": lambda: before_jobs(workflow, run),
        "onsuccess": lambda: setattr(run, "succeeded", True),
        "onerror": lambda: after_failure(run.results),
    }
    for name, act in acts.items():
        register = getattr(workflow, name)

        def both(func: Any, act: Any = act) -> Any:
            return lambda log: (act(), func(log), _end_interrupted(workflow, run))

        setattr(workflow, f"_{name}", both(getattr(workflow, f"_{name}")))
        setattr(workflow, name, lambda func, both=both, register=register: register(both(func)))


def _end_interrupted(workflow: Any, run: "Run") -> None:
    """Snakemake believes that 1 is the exit code of a run that a signal has ended.

    We need the code by which a shell tells the signal, as from our scripts.
    """
    if run.interrupted or workflow.scheduler._user_kill:
        sys.exit(128 + (signal.SIGINT if run.interrupted else signal.SIGTERM))


def before_jobs(workflow: Any, run: "Run") -> None:
    """What a run checks and sets up just before its first job."""
    run.began = True
    host.announce()
    environment.clear_stray()
    try:
        probe_threads()
        run.refuse_small_memory()
        small.mark(run.results)
        earlier_runs.lock_results(run.results)
        _write_command(run.results)
        failures.forget_devices(run.results)
        needed = list(workflow.dag.needrun_jobs())
        if any(str(run.results.plan) in map(str, job.output) for job in needed):
            run.write_planned()
        slurm_executor.begin(run.plan, workflow, needed)
        grid_engine_executor.begin(run.plan, workflow, needed)
        _refuse_too_large(workflow, run, {job.rule.name for job in needed})
        for_all = run.rule_for_all and run.name_of(run.rule_for_all)
        for job in (job for job in needed if job.rule.name == for_all):
            if run.dispatch == "array":
                recipe.write(run.results, workflow, job)
            if run.forced and not workflow.touch:
                for shard in run.to_compute:  # no receipt, no result
                    run.results.receipt(run.plan.shards[shard].name).unlink(missing_ok=True)
    except (InputError, TryAgain) as error:
        refuse(error)
    except OSError as error:
        refuse(of_code(*verdict(error)))


def probe_threads(start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
    """Snakemake believes that it can start threads, and shows a traceback where it cannot.

    We need words. So a run that could not have those of its first jobs is refused before any job.
    """
    done = threading.Event()
    try:
        for _ in range(_THREADS):
            start(threading.Thread(target=done.wait, daemon=True))
    except RuntimeError as error:
        raise TryAgain(verdict(error)[1]) from None
    finally:
        done.set()


def _write_command(results: Results) -> None:
    """Leave the command that continues this run, for those who watch it."""
    from shardwise.files.commit import commit  # here: jobs do not need it

    with suppress(OSError, ShardwiseError), commit(results.command) as file:
        file.write(f"{progress.rerun_command(sys.argv, os.getcwd())}\n".encode(errors="replace"))


def _refuse_too_large(workflow: Any, run: "Run", rules: Collection[str]) -> None:
    """Refuse what no job on this machine can hold; elsewhere only the tasks know their device."""
    here = workflow.local_exec and run.dispatch in ("jobs", "pool") and not workflow.touch
    if not here or not {run.name_of("multiply"), run.name_of("pool")}.intersection(rules):
        return
    from shardwise.devices import choose  # here: jobs do not need them, nor NumPy
    from shardwise.multiply import checks, host

    backend = run.plan.settings.backend
    cuda = backend != "numpy" and choose.driver_cuda_version() is not None
    with suppress(TryAgain):  # no device here is the tasks' affair
        total = choose.largest_memory(backend) if cuda else host.total_memory()
        checks.refuse_too_large(run.plan, cuda, total)


def _heed_interrupts(run: "Run") -> None:
    """Snakemake believes that a job which Ctrl-C has ended is an error like any other.

    We need to tell the two apart, and a closed terminal to be a Ctrl-C. So either is noted, and
    from then on no error is shown. A signal that is ignored stays so, as under nohup.
    """

    def interrupted(signum: int, frame: FrameType | None) -> None:
        run.interrupted = True
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it may come from the shell as well
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupted)
    log.addFilter(lambda record: not (run.interrupted and record.levelno >= logging.ERROR))


def after_failure(results: Results) -> None:
    """Make the page on a run that has failed; if it cannot be made, a warning says why.

    In a process of its own, which Ctrl-C ends: nothing may keep the end of a run from its user.
    """
    if not results.root.is_dir():
        return
    words = [sys.executable, str(SCRIPTS / "report.py"), "--", str(results.root)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PAGE_SECONDS, check=False
        )
        lines = done.stderr.decode(errors="replace").strip().splitlines() if done.returncode else []
        reason = (lines or [f"it exited {done.returncode}"])[-1] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    with suppress(OSError):  # older than any sum: once there is one, Snakemake makes the page anew
        os.utime(results.report, (1, 1))
    if reason:
        log.warning(f"shardwise: no page on this run ({results.report}): {one_line(reason)}")


def show_plainly() -> None:
    """Snakemake believes that names and messages hold nothing but text.

    We need none of them to steer the terminal. (It adds its colors later.)
    """
    for handler in log.handlers:
        handler.format = lambda record, format=handler.format: errors.shown(format(record))


def show_less(workflow: Any) -> None:
    """Snakemake believes that what it is quiet about belongs nowhere, nor into its log file.

    We need some ten lines on the screen, and every event in the file. So the profiles are quiet
    about rules alone, the file's filter lets everything through, and the screen gets warnings,
    errors, and the notes that `_SHOWN` fits.
    """
    if "rules" not in progress.quietness(workflow):
        return
    for handler in log.handlers:
        if isinstance(handler, logging.FileHandler):
            for part in (*handler.filters, handler.formatter):
                part.quiet = set()  # type: ignore[union-attr]
        elif handler.name == "DefaultStreamHandler":
            handler.filters.insert(0, _Screen())  # before Snakemake's own, to see every note


class _Screen(logging.Filter):
    """Passes what a user wants to see of a run; of --list-rules and the like, all."""

    _runs = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a note; of a failed job `progress` says why, in one line."""
        text = record.getMessage()
        self._runs |= getattr(getattr(record, "event", None), "value", "") == "workflow_started"
        if record.levelno > logging.INFO:
            return not text.startswith("RuleException:\nCalledProcessError")
        return _SHOWN.match(text) is not None if self._runs else not text.startswith("Assuming")


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
    return f"set -euo pipefail; export {path}SCRIPTS={scripts}; "
