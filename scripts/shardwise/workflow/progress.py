"""What a user sees of a run: how far it is; at the end, failures and what to do.

It follows the run through Snakemake's log events and the files in its results folder, and ends the
tries of a job whose user has to act first.
"""

import atexit
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from shardwise.errors import ShardwiseError, TryAgain, one_line, tell, verdict
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.host import TYPED
from shardwise.records import failures
from shardwise.records.failures import Failure
from shardwise.records.quote import advice, quote
from shardwise.units import human_bytes, seconds
from shardwise.work import schedulers
from shardwise.workflow import hooks, preflight

if TYPE_CHECKING:
    from shardwise.observe.status import Status

_SECONDS_BETWEEN_LINES = 10.0
_COUNTS = 20.0  # a pause between counts is at least this many times as long as a count
_BAR = 30  # letters
_MOST_TOLD = 16  # failures that are told while the run goes on

_REFUSED = re.compile(r"The error message was '?(.*?)'?\.?\n? *(sbatch call:|$)", re.DOTALL)
_STATUS = re.compile(r"status is: '?((?!FAILED)[A-Z_]+)")  # FAILED: it has ended by itself


def attach(workflow: Any, run: Any) -> None:
    """Follow the events of the main process's run; jobs stay silent."""
    if workflow.is_main_process:
        listener = Listener(workflow, run)
        hooks.log.addHandler(listener)
        hooks.log.addFilter(listener.wants)
        logging.raiseExceptions = False  # on a full disk, Snakemake's log: no traceback per event
        atexit.register(listener.last_words)


class Listener(logging.Handler):
    """Begins and follows one run.

    It acts on log events, as Snakemake never calls the ``onstart`` and ``onerror`` of a module.
    ``began`` says whether the run has passed its checks, so that jobs could start.
    """

    def __init__(self, workflow: Any, run: Any) -> None:
        super().__init__()
        self._workflow, self._run = workflow, run
        self._told = set[str]()  # messages on failures, each of which is told once
        self._failed: Any = None  # the last job that failed
        # With `--directory` Snakemake has left the folder; only the variable PWD still names it.
        own, moved = str(workflow.workdir_init), workflow.overwrite_workdir
        typed = shlex.split(os.environ.pop(TYPED, "")) or sys.argv
        self._again = rerun_command(typed, os.environ.get("PWD", own) if moved else own)
        self._planned = self.began = self._interrupted = self._ending = False
        self._ended = threading.Event()
        self._folder = os.getcwd()  # Snakemake leaves it before `last_words`

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Note a Ctrl-C or a closed terminal: jobs that end because of it are not errors."""
        self._interrupted = True
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it may come from the shell as well
        if not self._ending:
            raise KeyboardInterrupt

    def wants(self, record: logging.LogRecord) -> bool:
        """Whether to pass on an event: errors after a Ctrl-C are dropped."""
        # Snakemake ends its jobs: another Ctrl-C would only cut that short.
        self._ending |= str(record.msg).startswith("Terminating processes")
        return not (self._interrupted and record.levelno >= logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of one event."""
        event = getattr(getattr(record, "event", None), "value", "")
        if event == "run_info" and not self._planned:  # a dry run sends it twice
            self._planned = True
            self._begin(record.stats)  # type: ignore[attr-defined]
        elif event == "job_info" and self._failed:
            self._failed._params = None  # computed once, but what an array asks grows with each try
        elif event == "job_error" and not self._workflow.dryrun:
            try:
                self._on_failure(record.jobid, record.rule_msg)  # type: ignore[attr-defined]
            except Exception:  # then the job is retried as usual
                traceback.print_exc()

    def _begin(self, stats: Mapping[str, int]) -> None:
        """Say which jobs there are, in the order in which they run, and prepare for them."""
        dry, run = self._workflow.dryrun, self._run
        jobs = {rule: stats[rule] for rule in run.stages if rule in stats}
        end = " (dry run: nothing was started)" * dry
        say = hooks.log.info if dry else tell  # as Snakemake does with all that a dry run says
        say("shardwise: jobs: " + ", ".join(f"{r} {count}" for r, count in jobs.items()) + end)
        # Else it is not a quote of this run.
        if "reduce" in map(run.stages.get, jobs) and not run.forces:
            say(f"shardwise: {quote(run.plan, run.reduce, run.missing)}")
        hooks.before_jobs(self._workflow, run)
        if dry:
            return
        self.began = True
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, self.interrupt)
        with suppress(OSError, ShardwiseError), commit(run.results.command) as file:
            file.write(f"{self._again}\n".encode(errors="replace"))  # for those who watch it
        if run.missing and not self._workflow.touch:
            # Snakemake may end at any moment, and must not wait for this thread.
            threading.Thread(target=self._count, daemon=True).start()

    def _on_failure(self, number: int, said: str | None) -> None:
        """Say why a job has failed, and which try follows; none if it would only fail again."""
        run, dag = self._run, self._workflow.dag
        for job in list(self._workflow.scheduler.running):  # other threads change it
            if dag.jobid(job) != number or job.rule.name not in run.stages:  # of other modules
                continue
            self._failed = job
            found, whole = run.failures_of(job, of_slurm(said or "", job.rule.name))
            if whole and all(map(failures.needs_user, found)):
                job.attempt = job.restart_times + 1
            more = job.attempt <= job.restart_times
            follows = f"; try {job.attempt + 1} of {job.restart_times + 1} follows" * more
            self._tell_causes(found, follows)

    def _tell_causes(self, found: Iterable[Failure], follows: str = "") -> None:
        from shardwise.observe.status import by_cause  # here: jobs do not need it

        for line in by_cause(found, self._run.results.root):
            if len(self._told) < _MOST_TOLD and line + follows not in self._told:
                self._told.add(line + follows)
                tell(f"shardwise: {line}{follows}")

    def _count(self) -> None:
        """Say now and then how far the run is, if anything has changed."""
        run, rows, told, pause = self._run, self._run.plan.shards, "", _SECONDS_BETWEEN_LINES
        began, first = time.monotonic(), sum(rows[shard].bytes for shard in run.missing)
        while not self._ended.wait(pause) and not self._interrupted:
            now = time.monotonic()
            with suppress(OSError):  # as while a file server restarts
                missing = run.store.missing()
                bad = run.store.failed(missing).values()
                if run.rule_for_all:  # else each failed shard has its own event
                    self._tell_causes(bad)
                done, left = len(rows) - len(missing), sum(rows[shard].bytes for shard in missing)
                words = f"{done} of {len(rows)} shards done"
                words += f", {len(bad)} failed so far" if bad else ""
                if words != told:
                    bar = "━" * (_BAR * done // len(rows))
                    bar = f"{bar:─<{_BAR}} " if sys.stderr.isatty() else ""
                    more = ""
                    if (rate := (first - left) / (now - began)) > 0:
                        more = f"; {human_bytes(rate)}/s"
                        more += f", about {seconds(left / rate)} to go" if left else ""
                    tell(f"shardwise: multiply: {bar}{words}{more}")
                told = words
            pause = max(pause, _COUNTS * (time.monotonic() - now))

    def last_words(self) -> None:
        """Say, as the process ends, what is whole, or what failed, why, and how to continue."""
        if self.began:
            self._ended.set()
            self._ending = True
            os.chdir(self._folder)
            code = self._tell_end()
            if self._interrupted:  # Snakemake would end with 1, as if a job had failed
                logging.shutdown()
                os._exit(code)

    def _tell_end(self) -> int:
        """Say how the run ended, by its files, not by Snakemake's events; the code of a Ctrl-C."""
        run, shards = self._run, len(self._run.plan.shards)
        missing = run.store.missing()
        finished = not missing and all(map(os.path.exists, run.all_files))
        barred = [
            f"{uuid} on node {failure.host} was not used again in this run: {failure.reason}"
            for uuid, failure in failures.barred(run.results).items()
        ]
        if finished or not list(self._workflow.dag.needrun_jobs()):
            whole = ", ".join(run.last_files)
            done = f"done: {whole if finished else 'what was asked for'}"
            kept = (small.read(run.results.listed(run.plan.key)) or b"").decode().strip()
            for line in filter(None, [done, kept, *barred, advice(run.plan)]):
                tell(f"shardwise: {line}")
            return 0
        self._ending = False  # Ctrl-C ends the page, and nothing else
        done, (seen, made) = shards - len(missing), make_page(run)
        self._ending = True
        if self._interrupted:
            lines = [f"interrupted: {done} of {shards} shards done"]
        else:
            lack = f"{len(missing)} missing" if missing else "the sum or the page is missing"
            lines = [f"not finished: {done} of {shards} shards have products; {lack}."]
            lines += [f"  {line}" for line in [*seen.causes(failures.this_run()), *barred]]
            lines += [f"The page on this run: {run.results.report}"] * made
        lines += ["To run just what is missing, then the sum:", f"  {self._again}"]
        hooks.tell_last("\n".join(lines), before="\nshardwise: ")
        return 128 + signal.SIGINT


def make_page(run: Any) -> tuple["Status", bool]:
    """Look at a run that has failed, and make its page; if that fails, a warning says why."""
    from shardwise.observe.status import Status, look  # here: jobs do not need them

    seen = Status(run.results, at=time.time())
    try:
        from shardwise.observe import page

        small.refuse_unmarked(run.results)  # it was renamed
        seen = look(run.results.root, plan=run.plan)
        page.write(seen)
    except (Exception, KeyboardInterrupt) as error:  # nothing may keep a user from the last words
        tell(f"shardwise: report not written ({run.results.report}): {verdict(error)[1]}")
        return seen, False
    return seen, True


def of_slurm(said: str, rule: str) -> ShardwiseError:
    """What Slurm says of a job of a rule, by the message of Snakemake's plugin.

    The plugin hands over a sentence and no code, so only this function reads such sentences.
    """
    said = said.partition("For further error details")[0]  # Snakemake adds this
    if refused := _REFUSED.search(said):
        words = one_line(" ".join(refused[1].split()))
        return preflight.refused(rule, schedulers.refusal(words, 1))
    if status := _STATUS.search(said):
        return TryAgain(f"the scheduler says {status[1]}")
    return TryAgain("it left no message: killed, lost with its node, or never started")


def rerun_command(argv: list[str], folder: str) -> str:
    """The command that continues a run: the same one, without what would force finished work."""
    module = Path(argv[0]).suffix == ".py"  # run by python -m: Snakemake's, or ours
    words, forced = [sys.executable, "-P", "-m", "snakemake"] if module else argv[:1], False
    for word in argv[1:]:
        # The rules that -R names follow it, up to the next option.
        forced = word in ("-R", "--forcerun") or (forced and word[:1] != "-")
        if not forced and word not in ("-F", "--forceall", "-f", "--force"):
            words.append(word)
    return f"cd {shlex.quote(folder)} && {shlex.join(words)}"
