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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.devices import quarantine
from shardwise.records import logs, missing
from shardwise.workflow import earlier_runs

_SECONDS_BETWEEN_LINES = 10.0
_FOLLOW_SECONDS = 1.0
_STAGES = ("plan", "synthesize", "shard", "multiply", "ledger", "reduce", "report")
_PER_SHARD = ("shard", "multiply")
_FOR_ALL = ("pool", "mpi")
"""Rules whose one job computes all shards; so does `multiply` under `dispatch: array`."""
_RUN_NAME = re.compile(r"SLURM run ID: (\S+)")
_COUNT = re.compile(r"\d+ of \d+ shards done.*")


@dataclass
class Failure:
    """The last failed attempt of a job."""

    name: str
    reason: str
    log: str


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
        self._workflow, self._run, self._began = workflow, run, time.time()
        self._quiet = bool(quietness(workflow) & {"rules", "progress", "all"})
        self._planned, self._done = Counter[str](), Counter[str]()
        self._names: dict[int, tuple[str, str]] = {}
        self._failed: dict[int, list[Failure]] = {}
        self._last_line = 0.0
        self._follower: Follower | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of one event."""
        event = getattr(getattr(record, "event", None), "value", "")
        act = getattr(self, f"_on_{event}", None)
        try:
            if act is not None:
                if event == "run_info" or not self._workflow.dryrun:
                    act(record)
            elif match := _RUN_NAME.search(record.getMessage()):
                earlier_runs.remember(self._run.results, "slurm", match[1])
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
        say("shardwise: jobs: " + ", ".join(f"{rule} {stats[rule]}" for rule in rules) + end)

    def _on_job_info(self, record: Any) -> None:
        shard = dict(record.wildcards or {}).get("shard", "")
        self._names[record.jobid] = record.rule_name, shard
        if self._for_all(record.rule_name):
            log = _log_of(record)
            if log:  # that of an earlier run, or try: Snakemake removes it when the job starts
                log.unlink(missing_ok=True)
            self._follower = Follower(log)

    def _on_job_finished(self, record: Any) -> None:
        rule, _ = self._names.get(record.job_id, ("", ""))
        self._failed.pop(record.job_id, None)
        if _stage(rule) in _STAGES:
            self._done[_stage(rule)] += 1
            self._line(_stage(rule))

    def _on_job_error(self, record: Any) -> None:
        rule, shard = self._names.get(record.jobid, (record.rule_name, ""))
        log = _log_of(record)
        reason = logs.explain(log, record.rule_msg)
        own = [Failure(f"{rule} {shard}".strip(), reason, str(log or ""))]
        failures = (shard_failures(log) if self._for_all(rule) else []) or own
        self._failed[record.jobid] = failures
        for failure in failures if self._quiet else ():  # else Snakemake prints the whole log
            say(f"shardwise: failed: {failure.name}: {failure.reason} (log: {failure.log})")
        if _stage(rule) in _STAGES:
            self._line(_stage(rule), at_once=True)

    def _for_all(self, rule: str) -> bool:
        """Whether the one job of this rule computes all shards."""
        return self._run.dispatch != "jobs" and _stage(rule) == "multiply"

    def _line(self, rule: str, at_once: bool = False) -> None:
        """A line on the stage that just advanced; at most one in ten seconds, unless it is news."""
        if self._follower and self._for_all(rule):
            self._follower.end()
            self._follower = None
        done, all_jobs = self._counts(rule)
        now = time.monotonic()
        at_once |= done == all_jobs
        if now - self._last_line < _SECONDS_BETWEEN_LINES and not at_once:
            return
        self._last_line = now
        failed = sum(1 for f in self._failures() if _stage(f.name.split()[0]) == rule)
        what = "shards done" if rule in _PER_SHARD else "done"
        then = [s for s in _STAGES[_STAGES.index(rule) + 1 :] if self._planned[s]]
        words = [f"{rule}: {done} of {all_jobs} {what}"]
        words += [f"{failed} failed so far"] if failed else []
        words += [f"{all_jobs - done} to go"] if done < all_jobs else []
        after = "; then " + ", ".join(then) if then else ""
        say("shardwise: " + ", ".join(words) + after)

    def _failures(self) -> list[Failure]:
        failures = [failure for some in self._failed.values() for failure in some]
        return sorted(failures, key=lambda f: f.name)

    def _counts(self, rule: str) -> tuple[int, int]:
        """Jobs done and jobs in all, those of earlier runs included."""
        planned, done = self._planned[rule], self._done[rule]
        if self._for_all(rule):
            shards = len(self._run.plan.shards)
            return shards if done else shards - len(missing.list_missing(self._run.plan)), shards
        if rule not in _PER_SHARD or not self._whole():
            return done, planned
        shards = len(self._run.plan.shards)
        return shards - planned + done, shards

    def last_words(self) -> None:
        """At the end of the process: what is whole, or what failed, why, and how to continue.

        What is whole is read from the files. Snakemake's events may be incomplete: a quiet mode
        leaves some out, and a signal ends the process before others.
        """
        run = self._run
        if not run.began:
            return
        from shardwise.records import remaining  # here: jobs do not need it

        work = remaining.find(run.plan, run.reduce["statistics"], jobs=False)
        finished = work.finished and run.results.report.exists()
        if finished or (run.succeeded and not self._whole()):
            whole = ", ".join(run.in_the_end())
            say(f"shardwise: done: {whole if finished else 'what was asked for'}")
            for line in quarantine.report(run.results):
                say(line)
            return
        shards = len(run.plan.shards)
        done = shards - len(work.missing)
        if run.interrupted:
            say(f"\nshardwise: interrupted: {done} of {shards} shards done")
        else:
            self._tell_failures(done, shards, run.results.summary not in work.unfit)
        say(f"To run just what is missing, then the sum:\n  {rerun_command(sys.argv, os.getcwd())}")

    def _whole(self) -> bool:
        """Whether everything was asked for, not single files or rules."""
        settings = self._workflow.dag_settings
        targets = settings.targets or {self._workflow.default_target}
        return "all" in targets and not (settings.until or settings.omit_from)

    def _tell_failures(self, done: int, shards: int, summed: bool) -> None:
        run = self._run
        lack = f"{shards - done} missing"
        if done == shards:
            lack = "the sum is there; the page on it is missing" if summed else "the sum is missing"
        say(f"\nshardwise: not finished: {done} of {shards} shards have their products; {lack}.")
        for failure in self._failures():
            say(f"  failed: {failure.name}: {failure.reason}")
            say(f"          log: {failure.log or 'none'}")
        for line in quarantine.report(run.results):
            say(line)
        if self._has_page():
            say(f"The page on it: {run.results.report}")

    def _has_page(self) -> bool:
        """Whether the page is of this run and not of an earlier one."""
        try:
            return self._run.results.report.stat().st_mtime >= self._began
        except OSError:
            return False


class Follower:
    """Shows the progress of the one job for all shards, from the lines of its log."""

    def __init__(self, log: Path | None) -> None:
        self._log, self._read = log, 0
        self._ended = threading.Event()
        # Snakemake may end at any moment, and must not wait for this thread.
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Show the last notes, and stop."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        count, last = "", -_SECONDS_BETWEEN_LINES
        while not self._ended.wait(_FOLLOW_SECONDS):
            count = self._look() or count
            if count and time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                say(f"shardwise: multiply: {count}")
                count, last = "", time.monotonic()
        self._look()  # the last count is that of the job itself, which has ended

    def _look(self) -> str:
        """Show new notes from the log; return the newest count, if there is one."""
        count = ""
        for level, text in logs.parse_lines(self._news()):
            if _COUNT.fullmatch(text):
                count = text
            elif level == "WARNING" and not text.startswith("shard "):
                say(f"shardwise: multiply: {text}")
        return count

    def _news(self) -> str:
        """The complete lines added to the log since the last look."""
        try:
            with open(self._log or "", "rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    self._read = 0  # another try has begun a new log
                file.seek(self._read)
                news = file.read()
        except OSError:
            return ""
        whole = news[: news.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace")


def _stage(rule: str) -> str:
    """The stage that a rule belongs to."""
    return "multiply" if rule in _FOR_ALL else rule


def _order(rule: str) -> int:
    """The position of a rule in the run; rules of other workflows come last."""
    return _STAGES.index(_stage(rule)) if _stage(rule) in _STAGES else len(_STAGES)


def _log_of(record: Any) -> Path | None:
    """The log of the job that an event speaks of."""
    return next((Path(str(path)) for path in record.log or [] if path), None)


def shard_failures(log: Path | None) -> list[Failure]:
    """The shards that the one job for all reported at its end as failed for good."""
    named = logs.find_failed_shards(logs.read(log))
    return [Failure(f"multiply {shard}", reason, log) for shard, reason, log in named]


def say(text: str) -> None:
    """A line for the user, on stderr; its terminal may be closed."""
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def rerun_command(argv: list[str], folder: str) -> str:
    """The command that continues a run: the same one, without what would force finished work."""
    program = argv[:1]
    if Path(argv[0]).name == "__main__.py":
        program = [sys.executable, "-m", "snakemake"]
    words, forced = [], False
    for word in argv[1:]:
        # The rules that -R names follow it, up to the next option.
        forced = word in ("-R", "--forcerun") or (forced and not word.startswith("-"))
        if not forced and word not in ("-F", "--forceall", "-f", "--force"):
            words.append(word)
    return f"cd {shlex.quote(folder)} && {shlex.join(program + words)}"
