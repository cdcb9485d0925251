"""What a user sees of a run: the progress of each stage; at the end, failures and what to do."""

import atexit
import logging
import os
import re
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import tell
from shardwise.records import failures, others
from shardwise.records.failures import Failure
from shardwise.work import schedulers
from shardwise.workflow.names import failure_name

_SECONDS_BETWEEN_LINES = 10.0
_COUNTS = 20.0  # counting may take one part in so many of the time
_STAGES = ("plan", "synthesize", "shard", "multiply", "ledger", "reduce", "report")
_PER_SHARD = ("shard", "multiply")
_FOR_ALL = ("pool", "mpi")
"""Rules whose one job computes all shards; so does `multiply` under `dispatch: array`."""
_MOST_CAUSES = 8
_MOST_NAMED = 5
_RUN_NAME = re.compile(r"SLURM run ID: (\S+)")
_STATUS = re.compile(r"status is: '?([A-Z_]+)")
_OWN = re.compile(r"[0-9a-f]{12}|\d+")
"""What differs between the words on two shards with the same cause."""


def attach(workflow: Any, run: Any) -> None:
    """Follow the events of the main process's run; jobs stay silent."""
    if workflow.is_main_process:
        listener = Listener(workflow, run)
        logging.getLogger("snakemake.logging").addHandler(listener)
        atexit.register(listener.last_words)


def quietness(workflow: Any) -> set[str]:
    """What Snakemake is told to be quiet about, such as ``rules`` and ``progress``."""
    return {word.name.lower() for word in workflow.output_settings.quiet or ()}


class Listener(logging.Handler):
    """Turns Snakemake's log events into a count of shards."""

    def __init__(self, workflow: Any, run: Any) -> None:
        super().__init__()
        self._workflow, self._run = workflow, run
        self._quiet = bool(quietness(workflow) & {"rules", "progress", "all"})
        self._planned, self._done = Counter[str](), Counter[str]()
        self._jobs: dict[int, tuple[str, Mapping[str, str]]] = {}
        self._failed = dict[str, Failure]()  # jobs that failed, by what their failures are named
        self._told = set[str]()
        self._last_line, self._last_words = 0.0, ""
        self._counting = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of one event."""
        event = getattr(getattr(record, "event", None), "value", "")
        act = getattr(self, f"_on_{event}", None)
        try:
            if act is not None:
                if event == "run_info" or not self._workflow.dryrun:
                    act(record)
            elif match := _RUN_NAME.search(record.getMessage()):
                schedulers.remember(self._run.results, "slurm", match[1])
        except Exception:  # a fault in counting must never end a run
            self.handleError(record)

    def _on_run_info(self, record: Any) -> None:
        if self._quiet and not self._planned:
            self._say_jobs(record.stats)  # else Snakemake prints them as a table
        self._planned = Counter()
        for rule, jobs_of_rule in record.stats.items():
            self._planned[_stage(rule)] += jobs_of_rule

    def _say_jobs(self, stats: Mapping[str, int]) -> None:
        """One line on the jobs of this run, in the order in which they run."""
        rules = sorted(stats.keys() - {"all", "total"}, key=_order)
        end = " (dry run: nothing was started)" if self._workflow.dryrun else ""
        tell("shardwise: jobs: " + ", ".join(f"{rule} {stats[rule]}" for rule in rules) + end)

    def _on_job_info(self, record: Any) -> None:
        self._jobs[record.jobid] = record.rule_name, dict(record.wildcards or {})
        if self._for_all(record.rule_name):
            self._counting = threading.Event()
            # Snakemake may end at any moment, and must not wait for this thread.
            threading.Thread(target=self._count, args=(self._counting,), daemon=True).start()

    def _on_job_finished(self, record: Any) -> None:
        rule, wildcards = self._jobs.get(record.job_id, ("", {}))
        self._failed.pop(failure_name(_stage(rule), wildcards, self._run.plan), None)
        if _stage(rule) in _STAGES:
            self._done[_stage(rule)] += 1
            self._line(_stage(rule))

    def _on_job_error(self, record: Any) -> None:
        rule, wildcards = self._jobs.get(record.jobid, (record.rule_name, {}))
        found = self._found(rule, wildcards, record)
        self._failed.update(found)
        root = self._run.results.root
        for name, failure in found.items() if self._quiet else ():  # else Snakemake prints the log
            words = f"shardwise: failed: {_shown(name)}: {_explain(failure, root)}"
            if words not in self._told and len(self._told) < 2 * _MOST_CAUSES:
                tell(words)
            self._told.add(words)
        if _stage(rule) in _STAGES:
            self._line(_stage(rule), at_once=True)

    def _found(self, rule: str, wildcards: Mapping[str, str], record: Any) -> dict[str, Failure]:
        """Why a job failed: its own words, or those of the shards it worked on, or what we know."""
        run, name = self._run, failure_name(_stage(rule), wildcards, self._run.plan)
        if self._for_all(rule):
            shards = (run.plan.shards[shard].name for shard in run.store.missing())
            if own := self._of_this_run(shards):
                return own
        if own := self._of_this_run([name]):
            return own
        status = _STATUS.search(record.rule_msg or "")
        reason = f"the scheduler says {status[1]}" if status else ""
        reason += "; " * bool(reason) + "it left no word: killed, lost with its node, or not begun"
        log = next((str(path) for path in record.log or [] if path), None)
        own = log and os.path.relpath(log, run.results.root)
        return {name: Failure(name, 75, reason, "", time.time(), log=own)}

    def _of_this_run(self, names: Iterable[str]) -> dict[str, Failure]:
        own = failures.this_run()
        found = failures.of(self._run.results, names)
        return {name: failure for name, failure in found.items() if failure.run == own}

    def _for_all(self, rule: str) -> bool:
        """Whether the one job of this rule computes all shards."""
        return self._run.dispatch != "jobs" and _stage(rule) == "multiply"

    def _line(self, rule: str, at_once: bool = False) -> None:
        """A line on the stage that just advanced; at most one in ten seconds, unless it is news."""
        if self._for_all(rule):
            self._counting.set()
        done, all_jobs = self._counts(rule)
        now = time.monotonic()
        at_once |= done == all_jobs
        if now - self._last_line < _SECONDS_BETWEEN_LINES and not at_once:
            return
        self._last_line = now
        failed = sum(_stage_of(name) == rule for name in self._failed)
        what = "shards done" if rule in _PER_SHARD else "done"
        then = [s for s in _STAGES[_STAGES.index(rule) + 1 :] if self._planned[s]]
        words = [f"{rule}: {done} of {all_jobs} {what}"]
        words += [f"{failed} failed so far"] if failed else []
        words += [f"{all_jobs - done} to go"] if done < all_jobs else []
        line = ", ".join(words) + ("; then " + ", ".join(then) if then else "")
        if line != self._last_words:
            self._last_words = line
            tell(f"shardwise: {line}")

    def _counts(self, rule: str) -> tuple[int, int]:
        """Jobs done and jobs in all, those of earlier runs included."""
        planned, done = self._planned[rule], self._done[rule]
        shards = len(self._run.plan.shards)
        if self._for_all(rule):
            return shards if done else shards - len(self._run.store.missing()), shards
        if rule not in _PER_SHARD or not self._whole():
            return done, planned
        return shards - planned + done, shards

    def _count(self, ended: threading.Event) -> None:
        """Say now and then how far the one job for all shards is."""
        shards, pause, last, began = len(self._run.plan.shards), _SECONDS_BETWEEN_LINES, 0, 0.0
        while not ended.wait(pause):
            took = time.monotonic()
            done = shards - len(self._run.store.missing())
            now = time.monotonic()
            pause = max(pause, _COUNTS * (now - took))
            rate = (done - last) / (now - began) if began else 0.0
            if done > last:
                left = f"; about {_duration((shards - done) / rate)} to go" if rate > 0 else ""
                tell(f"shardwise: multiply: {done} of {shards} shards done{left}")
            last, began = done, now

    # The last words.

    def last_words(self) -> None:
        """At the end of the process: what is whole, or what failed, why, and how to continue.

        What is whole is read from the files. Snakemake's events may be incomplete: a quiet mode
        leaves some out, and a signal ends the process before others.
        """
        run = self._run
        if not run.began:
            return
        missing, summed = run.store.missing(), run.store.is_summed(run.reduce["statistics"])
        finished = summed and run.store.is_listed() and not missing and run.results.report.exists()
        if finished or run.succeeded:
            whole = ", ".join(run.in_the_end())
            tell(f"shardwise: done: {whole if finished else 'what was asked for'}")
            self._tell_devices()
            if advice := others.advice(run.plan):
                tell(f"shardwise: {advice}")
            return
        shards = len(run.plan.shards)
        done = shards - len(missing)
        if run.interrupted:
            tell(f"\nshardwise: interrupted: {done} of {shards} shards done")
        else:
            lack = f"{len(missing)} missing"
            if not missing:
                lack = "the sum is " + ("there; the page on it is missing" if summed else "missing")
            tell(f"\nshardwise: not finished: {done} of {shards} shards have products; {lack}.")
            for line in describe_causes(self._causes(missing), run.results.root):
                tell(f"  {line}")
            self._tell_devices()
            if self._has_page():
                tell(f"The page on it: {run.results.report}")
        again = rerun_command(sys.argv, os.getcwd())
        tell(f"To run just what is missing, then the sum:\n  {again}")

    def _causes(self, missing: list[str]) -> dict[str, Failure]:
        """What failed in this run and is not mended, by name."""
        run = self._run
        names = [run.plan.shards[shard].name for shard in missing]
        names += [f"copy-{run.plan.shards[shard].input_name}" for shard in missing]
        return self._failed | self._of_this_run([*names, *(f"{s}-{run.plan.key}" for s in _STAGES)])

    def _tell_devices(self) -> None:
        for uuid, failure in failures.barred(self._run.results).items():
            tell(
                f"shardwise: {uuid} of node {failure.host} was left alone in this run: "
                f"{failure.reason}"
            )

    def _whole(self) -> bool:
        """Whether everything was asked for, not single files or rules."""
        settings = self._workflow.dag_settings
        targets = settings.targets or {self._workflow.default_target}
        return "all" in targets and not (settings.until or settings.omit_from)

    def _has_page(self) -> bool:
        """Whether there is a page on this run that failed."""
        return self._run.results.report.exists()


def describe_causes(failed: Mapping[str, Failure], root: Path) -> Iterator[str]:
    """A line or two for each cause of failures, the most frequent first; ten lines at most."""
    causes: dict[tuple[int, str], list[Failure]] = {}
    for failure in failed.values():
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
    """A failure's name for people, without its key."""
    *_, last = name.split("-")[:-1]
    return f"{_stage_of(name)} {last}" if last.isdigit() else _stage_of(name)


def _stage_of(name: str) -> str:
    """The stage that a failure's name speaks of."""
    first = name.split("-", maxsplit=1)[0]
    return {"copy": "shard"}.get(first, first if first in _STAGES else "multiply")


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _stage(rule: str) -> str:
    """The stage that a rule belongs to."""
    return "multiply" if rule in _FOR_ALL else rule


def _order(rule: str) -> int:
    """The position of a rule in the run; rules of other workflows come last."""
    return _STAGES.index(_stage(rule)) if _stage(rule) in _STAGES else len(_STAGES)


def rerun_command(argv: list[str], folder: str) -> str:
    """The command that continues a run: the same one, without what would force finished work."""
    program = argv[:1]
    if Path(argv[0]).name == "__main__.py":
        program = [sys.executable, "-P", "-m", "snakemake"]
    words, forced = [], False
    for word in argv[1:]:
        # The rules that -R names follow it, up to the next option.
        forced = word in ("-R", "--forcerun") or (forced and not word.startswith("-"))
        if not forced and word not in ("-F", "--forceall", "-f", "--force"):
            words.append(word)
    return f"cd {shlex.quote(folder)} && {shlex.join(program + words)}"
