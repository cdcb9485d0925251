"""What a user sees of a run: how far each stage is, and at the end what failed and how to go on."""

import atexit
import logging
import os
import re
import shlex
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.dispatch import jobs

_SECONDS_BETWEEN_LINES = 1.0
_STAGES = ("plan", "synthesize", "shard", "multiply", "ledger", "reduce")
_PER_SHARD = ("shard", "multiply")
_RUN_NAME = re.compile(r"SLURM run ID: (\S+)")
_STATUS = re.compile(r"status is: '?([A-Z_]+)")
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+ ([A-Z]+) (.*)")


@dataclass
class Failure:
    """The last failed attempt of a job."""

    name: str
    reason: str
    log: str


@dataclass
class State:
    """What has happened so far, counted by rule."""

    whole: bool = False  # whether everything was asked for, not single files
    planned: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)


def attach(workflow: Any, run: Any) -> None:
    """Follow the events of the main process's run; jobs, dry runs and listings stay silent."""
    logger = logging.getLogger("snakemake.logging")
    # The rules may be read twice in one process: one listener is enough.
    for handler in [h for h in logger.handlers if isinstance(h, Listener)]:
        logger.removeHandler(handler)
    if workflow.is_main_process:
        listener = Listener(workflow, run)
        logger.addHandler(listener)
        atexit.register(listener.last_words)


class Listener(logging.Handler):
    """Turns Snakemake's log events into a count of shards."""

    def __init__(self, workflow: Any, run: Any) -> None:
        super().__init__()
        self._workflow, self._run = workflow, run
        self._state = State()
        self._last_line = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of one event."""
        event = getattr(getattr(record, "event", None), "value", "")
        act = getattr(self, f"_on_{event}", None)
        try:
            if act is not None:
                if not self._workflow.dryrun:
                    act(record)
            elif match := _RUN_NAME.search(record.getMessage()):
                jobs.remember(self._run.results, "slurm", match[1])
        except Exception:  # a fault in counting must never end a run
            self.handleError(record)

    def _on_run_info(self, record: Any) -> None:
        self._state.whole = "all" in record.stats
        self._state.planned = Counter({r: n for r, n in record.stats.items() if r in _STAGES})

    def _on_job_info(self, record: Any) -> None:
        self._state.names[record.jobid] = (
            record.rule_name,
            dict(record.wildcards or {}).get("shard", ""),
        )

    def _on_job_finished(self, record: Any) -> None:
        rule, _ = self._state.names.get(record.job_id, ("", ""))
        self._state.failures.pop(record.job_id, None)
        if rule in _STAGES:
            self._state.done[rule] += 1
            self._line(rule)

    def _on_job_error(self, record: Any) -> None:
        rule, shard = self._state.names.get(record.jobid, (record.rule_name, ""))
        log = next((str(p) for p in record.log or [] if p), "")
        reason = explain(Path(log) if log else None, record.rule_msg)
        self._state.failures[record.jobid] = Failure(f"{rule} {shard}".strip(), reason, log)
        if rule in _STAGES:
            self._line(rule, at_once=True)

    def _line(self, rule: str, at_once: bool = False) -> None:
        """One line on the stage that just moved, at most one a second unless it is news."""
        done, all_jobs = self._counts(rule)
        now = time.monotonic()
        at_once |= done == all_jobs
        if now - self._last_line < _SECONDS_BETWEEN_LINES and not at_once:
            return
        self._last_line = now
        failed = sum(1 for f in self._state.failures.values() if f.name.split()[0] == rule)
        what = "shards done" if rule in _PER_SHARD else "done"
        then = [s for s in _STAGES[_STAGES.index(rule) + 1 :] if self._state.planned[s]]
        words = [f"{rule}: {done} of {all_jobs} {what}"]
        words += [f"{failed} failed so far"] if failed else []
        words += [f"{all_jobs - done} to go"] if done < all_jobs else []
        after = "; then " + ", ".join(then) if then else ""
        say("shardwise: " + ", ".join(words) + after)

    def _counts(self, rule: str) -> tuple[int, int]:
        """Jobs done and jobs in all, those of earlier runs included."""
        planned, done = self._state.planned[rule], self._state.done[rule]
        if rule not in _PER_SHARD or not self._state.whole:
            return done, planned
        shards = len(self._run.plan.shards)
        return shards - planned + done, shards

    def last_words(self) -> None:
        """At the end of the process: what is whole, or what failed, why, and how to go on."""
        planned = sum(self._state.planned.values())
        if not self._state.names or not planned:
            return
        if sum(self._state.done.values()) == planned:
            whole = ", ".join(self._run.statistics())
            say(f"shardwise: done: {whole if self._state.whole else 'what was asked for'}")
            return
        failures = sorted(self._state.failures.values(), key=lambda f: f.name)
        done, shards = self._counts("multiply")
        lack = "the sum is missing" if done == shards else f"{shards - done} missing"
        say(f"\nshardwise: not finished: {done} of {shards} shards have their products; {lack}.")
        for failure in failures:
            say(f"  failed: {failure.name}: {failure.reason}")
            say(f"          log: {failure.log or 'none'}")
        say(f"To run just what is missing, then the sum:\n  {rerun_command(sys.argv, os.getcwd())}")


def say(text: str) -> None:
    """A line for the user, on stderr."""
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


def explain(log: Path | None, scheduler_says: str | None) -> str:
    """Why a job failed: its own last error, and what the scheduler says where it ended the job."""
    status = _STATUS.search(scheduler_says or "")
    parts = [f"the scheduler says {status[1]}"] if status and status[1] != "FAILED" else []
    try:
        lines = log.read_text(errors="replace").splitlines() if log else []
    except OSError:
        lines = []
    errors = [m[2] for line in lines if (m := _LOG_LINE.match(line)) and m[1] == "ERROR"]
    if errors:
        parts.append(errors[-1])
    elif lines and _LOG_LINE.match(lines[-1]) is None:
        parts.append(lines[-1])  # not of our own logging: Python, MPI or a launcher
    elif not parts:
        parts.append("it left no error in its log: killed, lost with its node, or never started")
    return "; ".join(parts)
