"""What a user sees of a run: how far it is; at the end, failures and what to do.

It hears of the run by Snakemake's own log events, and looks at its results folder.
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from shardwise.errors import ShardwiseError, tell
from shardwise.host import TYPED
from shardwise.records import failures, others
from shardwise.records.failures import Failure
from shardwise.records.quote import quote
from shardwise.units import seconds
from shardwise.workflow import hooks, recipe
from shardwise.workflow.names import failure_name

_SECONDS_BETWEEN_LINES = 10.0
_COUNTS = 20.0  # counting may take one part in so many of the time
_STAGES = ("plan", "synthesize", "shard", "multiply", "pool", "mpi", "ledger", "reduce", "report")
_MOST_CAUSES = 8
_MOST_NAMED = 5
_STATUS = re.compile(r"status is: '?([A-Z_]+)")
_OWN = re.compile(r"[0-9a-f]{12}|\d+")
"""What differs between the words on two shards with the same cause."""


def attach(workflow: Any, run: Any) -> None:
    """Follow the events of the main process's run; jobs stay silent."""
    if workflow.is_main_process:
        listener = Listener(workflow, run)
        logger = logging.getLogger("snakemake.logging")
        logger.addHandler(listener)
        logger.addFilter(listener.wants)
        atexit.register(listener.last_words)


class Listener(logging.Handler):
    """Begins and follows one run.

    It acts on events, not by Snakemake's ``onstart`` and ``onerror``: those of a module are never
    called. ``began``: whether jobs were about to start.
    """

    def __init__(self, workflow: Any, run: Any) -> None:
        super().__init__()
        self._workflow, self._run = workflow, run
        self._quiet = bool(hooks.quietness(workflow) & {"rules", "progress", "all"})
        self._stages = {run.name_of(stage): stage for stage in _STAGES}
        self._jobs: dict[int, tuple[str, Mapping[str, str]]] = {}
        self._failed = dict[str, Failure]()  # jobs that failed, by what their failures are named
        self._told = set[str]()
        self._typed = shlex.split(os.environ.pop(TYPED, "")) or sys.argv
        self._planned = self.began = self._interrupted = self._ending = False
        self._ended = threading.Event()

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Note Ctrl-C, and take a closed terminal as one: no job that it ends is an error."""
        self._interrupted = True
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it may come from the shell as well
        if not self._ending:
            raise KeyboardInterrupt

    def wants(self, record: logging.LogRecord) -> bool:
        """Whether anybody is to hear of an event."""
        # Snakemake ends its jobs: another Ctrl-C would only cut that short.
        self._ending |= str(record.msg).startswith("Terminating processes")
        return not (self._interrupted and record.levelno >= logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of one event."""
        event = getattr(getattr(record, "event", None), "value", "")
        if event == "run_info":
            self._begin(record.stats)  # type: ignore[attr-defined]
        elif not self._workflow.dryrun and (act := getattr(self, f"_on_{event}", None)):
            try:
                act(record)
            except Exception:  # a fault in what is shown must never end a run
                self.handleError(record)

    def _begin(self, stats: Mapping[str, int]) -> None:
        """Say which jobs there are, in the order in which they run, and prepare for them.

        Of a dry run, Snakemake says it twice.
        """
        if self._planned:
            return
        self._planned, dry, run = True, self._workflow.dryrun, self._run
        if self._quiet:  # else Snakemake prints a table
            order = {rule: place for place, rule in enumerate(self._stages)}
            rules = sorted(stats.keys() - {"all", "total"}, key=lambda rule: order.get(rule, 99))
            end = " (dry run: nothing was started)" * dry
            tell("shardwise: jobs: " + ", ".join(f"{rule} {stats[rule]}" for rule in rules) + end)
        if stats.get(run.name_of("reduce")) and not run.forces:  # else it is not the whole
            own = quote(run.plan, run.reduce, run.missing)
            jobs = sum(stats[rule] for rule in stats.keys() - {"all", "total"})
            tell(f"shardwise: {own.line(jobs)}")
        computes, backend = run.name_of(run.rule_for_all or recipe.RULE), run.plan.settings.backend
        for doubt in recipe.doubts(self._workflow, self._stages, computes, backend):
            tell(f"shardwise: {doubt}")
        hooks.refuse_unfit_to_submit(self._workflow, run)
        if dry:
            return
        hooks.before_jobs(self._workflow, run)
        self.began = True
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, self.interrupt)
        self._write_command()
        if run.missing and not self._workflow.touch:
            # Snakemake may end at any moment, and must not wait for this thread.
            threading.Thread(target=self._count, daemon=True).start()

    def _write_command(self) -> None:
        """Leave the command that continues this run, for those who watch it."""
        from shardwise.files.commit import commit  # here: jobs do not need it

        text = f"{rerun_command(self._typed, os.getcwd())}\n"
        with suppress(OSError, ShardwiseError), commit(self._run.results.command) as file:
            file.write(text.encode(errors="replace"))

    def _count(self) -> None:
        """Say now and then how far the run is, if anything has changed."""
        run, shards, pause, told = self._run, len(self._run.plan.shards), _SECONDS_BETWEEN_LINES, ""
        began, first = time.monotonic(), shards - len(run.missing)
        while not self._ended.wait(pause):
            now = time.monotonic()
            done = shards - len(run.store.missing())
            pause = max(pause, _COUNTS * (time.monotonic() - now))
            words = f"multiply: {done} of {shards} shards done"
            words += f", {len(self._failed)} failed so far" if self._failed else ""
            if words != told and not self._interrupted:
                left = (now - began) * (shards - done) / max(1, done - first)
                more = f"; about {seconds(left)} to go" if first < done < shards else ""
                tell(f"shardwise: {words}{more}")
            told = words

    def _on_job_info(self, record: Any) -> None:
        self._jobs[record.jobid] = record.rule_name, dict(record.wildcards or {})

    def _on_job_error(self, record: Any) -> None:
        rule, wildcards = self._jobs.get(record.jobid, (record.rule_name, {}))
        found = self._found(rule, wildcards, record)
        self._failed.update(found)
        run, root, hopeless = self._run, self._run.results.root, True
        if self._stages.get(rule, rule) == run.rule_for_all:  # else it has one failure, its own
            own = self._failure_name(rule, wildcards) in found
            hopeless = own or len(found) == len(run.store.missing())
        hopeless = hopeless and all(map(failures.needs_user, found.values()))
        follows = self._next_try(record.jobid, hopeless)
        for name, failure in found.items() if self._quiet else ():  # else Snakemake prints the log
            words = f"shardwise: failed: {_shown(name)}: {_explain(failure, root)}{follows}"
            if words not in self._told and len(self._told) < 2 * _MOST_CAUSES:
                tell(words)
            self._told.add(words)

    def _next_try(self, number: int, hopeless: bool) -> str:
        """Which try of a failed job follows, in words; none where it would only fail again."""
        for job in list(self._workflow.scheduler.running):
            if self._workflow.dag.jobid(job) == number and job.attempt <= job.restart_times:
                if not hopeless:
                    return f"; try {job.attempt + 1} of {job.restart_times + 1} follows"
                job.attempt = job.restart_times + 1
        return ""

    def _found(self, rule: str, wildcards: Mapping[str, str], record: Any) -> dict[str, Failure]:
        """Why a job failed: its own words, or those of the shards it worked on, or what we know."""
        run, name = self._run, self._failure_name(rule, wildcards)
        if run.rule_for_all == self._stages.get(rule, rule):
            shards = (run.plan.shards[shard].name for shard in run.store.missing())
            if own := failures.of_this_run(self._run.results, shards):
                return own
        # By its path: a network disk shows a new name in a folder late.
        failure = failures.read(run.results.failure(name))
        if failure and failure.run == failures.this_run():
            return {name: failure}
        status = _STATUS.search(record.rule_msg or "")
        reason = f"the scheduler says {status[1]}" if status else ""
        reason += "; " * bool(reason) + "it left no word: killed, lost with its node, or not begun"
        log = next((str(path) for path in record.log or [] if path), None)
        own = log and os.path.relpath(log, run.results.root)
        return {name: Failure(name, 75, reason, "", time.time(), log=own)}

    def _failure_name(self, rule: str, wildcards: Mapping[str, str]) -> str:
        return failure_name(self._stages.get(rule, rule), wildcards, self._run.plan)

    def last_words(self) -> None:
        """At the end of the process: what is whole, or what failed, why, and how to continue.

        What is whole is read from the files, whatever Snakemake's events have told.
        """
        run = self._run
        if not self.began:
            return
        self._ended.set()
        missing, summed = run.store.missing(), run.store.is_summed(run.reduce["statistics"])
        finished = summed and run.store.is_listed() and not missing and run.results.report.exists()
        unfinished = list(self._workflow.dag.needrun_jobs())
        if finished or not unfinished:
            whole = ", ".join(run.in_the_end())
            tell(f"shardwise: done: {whole if finished else 'what was asked for'}")
            self._tell_devices()
            if advice := others.advice(run.plan):
                tell(f"shardwise: {advice}")
            return
        hooks.after_failure(run.results, summed)
        shards = len(run.plan.shards)
        done = shards - len(missing)
        if self._interrupted:
            tell(f"\nshardwise: interrupted: {done} of {shards} shards done")
        else:
            lack = f"{len(missing)} missing"
            if not missing:
                lack = "the sum is " + ("there; the page on it is missing" if summed else "missing")
            tell(f"\nshardwise: not finished: {done} of {shards} shards have products; {lack}.")
            names = [self._failure_name(job.rule.name, job.wildcards_dict) for job in unfinished]
            if run.rule_for_all:
                names += [run.plan.shards[shard].name for shard in missing]
            for line in describe_causes(self._causes(names), run.results.root):
                tell(f"  {line}")
            self._tell_devices()
            if run.results.report.exists():
                tell(f"The page on it: {run.results.report}")
        again = rerun_command(self._typed, os.getcwd())
        tell(f"To run just what is missing, then the sum:\n  {again}")
        if self._interrupted:  # Snakemake ends with 1; scripts and a shell tell a Ctrl-C by this
            logging.shutdown()
            os._exit(128 + signal.SIGINT)

    def _causes(self, names: list[str]) -> dict[str, Failure]:
        """What failed in this run of what it leaves open, by name."""
        lost = {name: self._failed[name] for name in names if name in self._failed}
        return lost | failures.of_this_run(self._run.results, names)

    def _tell_devices(self) -> None:
        for uuid, failure in failures.barred(self._run.results).items():
            tell(
                f"shardwise: {uuid} of node {failure.host} was left alone in this run: "
                f"{failure.reason}"
            )


def describe_causes(failed: Mapping[str, Failure], root: Path) -> Iterator[str]:
    """A line or two for each cause of failures, the most frequent first; ten lines at most."""
    causes: dict[tuple[int, str], list[Failure]] = {}
    for failure in sorted(failed.values(), key=lambda each: each.name):
        causes.setdefault((failure.code, _OWN.sub("#", failure.reason)), []).append(failure)
    ordered = sorted(causes.values(), key=lambda same: (-len(same), same[0].name))
    for same in ordered[:_MOST_CAUSES]:
        names = ", ".join(_shown(failure.name) for failure in same[:_MOST_NAMED])
        names += f" and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
        yield f"failed: {names}: {_explain(same[0], root)}"
    if rest := ordered[_MOST_CAUSES:]:
        yield f"and {sum(map(len, rest))} failures of {len(rest)} other causes: shardwise watch"


def _explain(failure: Failure, root: Path) -> str:
    where = f" (log: {root / failure.log})" if failure.log else ""
    return f"{failure.reason}{where}"


def _shown(name: str) -> str:
    """A failure's name for people, without its key: of a copy, a product, or a stage for all."""
    *copy, last = name.split("-")[:-1]
    return f"{'shard' if copy else 'multiply'} {last}" if last.isdigit() else last


def rerun_command(argv: list[str], folder: str) -> str:
    """The command that continues a run: the same one, without what would force finished work."""
    module = Path(argv[0]).suffix == ".py"  # of Snakemake, or of ours
    program = [sys.executable, "-P", "-m", "snakemake"] if module else argv[:1]
    words, forced = [], False
    for word in argv[1:]:
        # The rules that -R names follow it, up to the next option.
        forced = word in ("-R", "--forcerun") or (forced and not word.startswith("-"))
        if not forced and word not in ("-F", "--forceall", "-f", "--force"):
            words.append(word)
    return f"cd {shlex.quote(folder)} && {shlex.join(program + words)}"
