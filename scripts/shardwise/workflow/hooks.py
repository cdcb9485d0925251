"""Every trick that is played on Snakemake."""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from snakemake.persistence import NO_PARAMS_CHANGE

from shardwise import host
from shardwise.errors import InputError, ShardwiseError, TryAgain, one_line
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.processes import leftovers
from shardwise.workflow import claim, final, grid_engine, progress, recipe, slurm

if TYPE_CHECKING:
    from shardwise.workflow.run import Run


log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

SCRIPTS = Path(__file__).parents[2]
_PAGE_SECONDS = 120.0
"""So long may it take to make the page on a failed run; 100,000 shards take less than a minute."""

_SHOWN = re.compile("shardwise: |Nothing to be done|Complete log|Terminating|Shutting down")


def _refuse(error: ShardwiseError) -> NoReturn:
    """End with the exit code of an error. Snakemake's logger says nothing under ``--quiet all``."""
    sys.stderr.write(f"{error}\n")
    sys.exit(error.exit_code)


def _refuse_prefix(workflow: Any) -> None:
    """Refuse ``prefix:`` of a module: Snakemake would rename files, and the scripts not know."""
    prefix = workflow.modifier.path_modifier.prefix
    if prefix:
        _refuse(
            InputError(
                f"prefix: {prefix!r} of the module cannot be used: it would rename the input as "
                "well. Set the key results in the module's config instead, such as "
                f"results: {prefix}results"
            )
        )


def _is_own(job: Any) -> bool:
    """Whether a job is of a rule of this workflow; a group of jobs is not."""
    rule = getattr(job, "rule", None)
    rules = SCRIPTS.with_name("workflow")
    return rule is not None and Path(str(rule.snakefile)).is_relative_to(rules)


def _around_graph(workflow: Any, force: Callable[[], None]) -> None:
    """Have Snakemake's graph follow what `standing` has found, once it knows what it is asked for.

    It has a hook for when it has read the rules, which is too early, and one for when jobs start.
    It also believes its own records of how each file was made: other params, inputs or commands
    than then make it run a job again. But others may have made the file since, and `standing` has
    compared what counts. So for the rules of this workflow the records are not asked.
    """
    prepare = workflow._prepare_dag

    def prepared(*args: Any, **named: Any) -> None:
        force()
        prepare(*args, **named)
        persistence = workflow.persistence
        for name, unchanged in (
            ("params_changed", NO_PARAMS_CHANGE), ("input_changed", ()), ("code_changed", ()),
            ("software_stack_changed", ()),
        ):  # fmt: skip
            asked = getattr(persistence, name)
            setattr(persistence, name, _asked_of_others(asked, unchanged))

    workflow._prepare_dag = prepared


def _asked_of_others(asked: Callable, unchanged: Any) -> Callable:
    def answer(job: Any, *args: Any, **named: Any) -> Any:
        return unchanged if _is_own(job) else asked(job, *args, **named)

    return answer


def _add_hooks(workflow: Any, run: "Run") -> None:
    """Have Snakemake call the hooks of a run, whoever includes these rules.

    Snakemake calls the hooks of the first Snakefile alone, so those of a module count for nothing.
    These are put around whatever the first Snakefile sets, before or after.
    """
    acts = {
        "onstart": lambda: before_jobs(workflow, run),
        "onsuccess": lambda: setattr(run, "succeeded", True),
        "onerror": lambda: after_failure(run.results),
    }
    for name, act in acts.items():
        register = getattr(workflow, name)

        def both(func: Any, act: Any = act) -> Any:
            return lambda log: (act(), func(log))

        setattr(workflow, f"_{name}", both(getattr(workflow, f"_{name}")))
        setattr(workflow, name, lambda func, both=both, register=register: register(both(func)))


def before_jobs(workflow: Any, run: "Run") -> None:
    """What a run checks and sets up just before its first job."""
    run.began = True
    _heed_interrupts(run)
    host.announce()
    slurm.begin()
    try:
        run.refuse_crowds()
        small.mark(run.results)
        claim.claim(run.results, joins=run.plan.facts.digest if run.dispatch == "array" else None)
        _write_command(run.results)
        if removed := leftovers.remove_folders():
            log.info(f"shardwise: removed what killed runs left: {', '.join(map(str, removed))}")
        final.begin(run.results)
        needed = list(workflow.dag.needrun_jobs())
        if any(str(run.results.plan) in map(str, job.output) for job in needed):
            run.write_planned()
        grid_engine.begin(run.results, workflow.executor_settings, workflow.workdir_init, needed)
        _refuse_too_large(workflow, run, {job.rule.name for job in needed})
        for job in (job for job in needed if job.rule.name == run.rule_for_all):
            if run.dispatch == "array":
                recipe.write(run.results, workflow, job)
            if run.forced and not workflow.touch:
                _disown(run)
    except InputError as error:
        _refuse(error)


def _write_command(results: Results) -> None:
    """Leave the command that continues this run, for who watches it."""
    from shardwise.files.commit import commit  # here: jobs do not need it

    with suppress(OSError, ShardwiseError), commit(results.command) as file:
        file.write(f"{progress.rerun_command(sys.argv, os.getcwd())}\n".encode(errors="replace"))


def _refuse_too_large(workflow: Any, run: "Run", rules: Collection[str]) -> None:
    """Refuse what no job on this machine can hold; elsewhere only the tasks know their device."""
    here = workflow.local_exec and run.dispatch in ("jobs", "pool") and not workflow.touch
    if not here or not {"multiply", "pool"}.intersection(rules):
        return
    from shardwise.devices import choose  # here: jobs do not need them, nor NumPy
    from shardwise.multiply import batch, lanes

    backend = run.plan.settings.backend
    cuda = backend != "numpy" and choose.driver_cuda_version() is not None
    with suppress(TryAgain):  # no device here is the tasks' affair
        total = choose.largest_memory(backend) if cuda else lanes.HostLane().total()
        batch.refuse_too_large(run.plan, cuda, total)


def _heed_interrupts(run: "Run") -> None:
    """Note a Ctrl-C, and let Snakemake tell no errors of the jobs that it has ended."""
    former = signal.getsignal(signal.SIGINT)
    if not callable(former):
        return  # a background job of a shell ignores it

    def interrupted(signum: int, frame: FrameType | None) -> None:
        run.interrupted = True
        former(signum, frame)

    signal.signal(signal.SIGINT, interrupted)
    log.addFilter(lambda record: not (run.interrupted and record.levelno >= logging.ERROR))


def after_failure(results: Results) -> None:
    """Make the page on a run that has failed; where it cannot be made, a warning says why.

    A process of its own makes it: the run is over, and nothing may keep its end from the user, who
    leaves it out by Ctrl-C.
    """
    if not results.root.is_dir():
        return
    words = [sys.executable, str(SCRIPTS / "report.py"), f"--plan={results.plan}"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PAGE_SECONDS, check=False
        )
        said = done.stderr.decode(errors="replace").strip().splitlines() if done.returncode else []
        reason = (said or [f"it exited {done.returncode}"])[-1] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    if reason:
        log.warning(f"shardwise: no page on this run ({results.report}): {one_line(reason)}")


def _disown(run: "Run") -> None:
    """Remove the receipts of products that are to be computed again: no receipt, no result."""
    for shard in run.to_compute:
        run.results.receipt(shard).unlink(missing_ok=True)


def show_less(workflow: Any) -> None:
    """Under the profiles' quiet mode, show what matters and write everything to the log file.

    Snakemake believes that what it is quiet about belongs nowhere: quiet about progress, it tells
    its listeners of no finished job; quiet about rules, it leaves them out of its own log file, and
    still prints some lines a job. We need some ten lines a run on the screen, every event, and a
    file that has it all. So the profiles are quiet about rules alone, the file's filter is told to
    let everything through, and the screen gets warnings, errors, and the notes that `_SHOWN` fits.
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


def shell_prefix() -> str:
    """What every job's shell begins with: strict mode, this Python first, where the scripts are."""
    # Snakemake formats the prefix like every command: braces in a name are doubled.
    folders = (Path(sys.executable).parent, SCRIPTS)
    own, scripts = (
        shlex.quote(str(path).replace("{", "{{").replace("}", "}}")) for path in folders
    )
    return f'set -euo pipefail; export PATH={own}:"$PATH" SCRIPTS={scripts}; '
