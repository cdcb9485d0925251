"""One run under Grid Engine: submit its jobs, follow them, and leave none behind.

A job leaves two files in the folder of the run: NAME.number when it starts, NUMBER.exit (0 or 1) at
its end. So success depends on a file of the job alone, and not on the accounting, which comes late
on some clusters and is not there on others. What Snakemake sees of this is the plugin
`snakemake_executor_plugin_shardwise_grid_engine`.
"""

import atexit
import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.dispatch.array import follow
from shardwise.dispatch.schedulers import grid_engine
from shardwise.dispatch.schedulers.common import UNHEARD_SECONDS, QueueFull
from shardwise.dispatch.schedulers.grid_engine import Job, Queue
from shardwise.errors import InputError, ShardwiseError, TryAgain, tell
from shardwise.files.paths import CACHE, Results
from shardwise.records import logs
from shardwise.workflow import earlier_runs, recipe

PLUGIN = "shardwise-grid-engine"

_AWAY_SECONDS = 600  # how long a submission waits for a qmaster that does not answer
_PAUSE_SECONDS = 5
_MESSAGE_SECONDS = 60
_TRACE_SECONDS = 10  # how long a job's mark or record may take to arrive once it has left

_JOBSCRIPT = """\
#!/bin/bash
# If the submission got no answer, its number is found here, even if the job ends at once.
echo "$JOB_ID" >"$1/$JOB_NAME.number"
(
{script}
)
code=$?
[ "$code" = 0 ] || code=1 # 99 and 100 have a meaning for Grid Engine
# The mark of the end, written in one step. Without it the job counts as killed.
echo "$code" >"$1/$JOB_ID.part" && mv "$1/$JOB_ID.part" "$1/$JOB_ID.exit" || exit 1
exit "$code"
"""


def begin(results: Results, workflow: Any, needed: Iterable[Any]) -> None:
    """Under ``profiles/uge``, check what the jobs ask for, and have the executor submit them here.

    Raises InputError where Grid Engine does not know what the profile asks for.
    """
    jobs = [job for job in needed if not job.is_local]
    if not jobs or workflow.executor_plugin.name != PLUGIN:
        return
    # Else a wrong parallel environment for the reduce would only show once all shards are done.
    for rule, job in {job.rule.name: job for job in jobs}.items():
        recipe.verify("uge", rule, job.resources)
    os.environ.pop("SNAKEMAKE_PROFILE", None)  # useless in a job, which may get all variables
    submissions = Submissions(results, (CACHE / "uge" / os.urandom(3).hex()).absolute())
    atexit.register(submissions.cancel)
    workflow.scheduler.get_executor(jobs[0]).begin(submissions)


@dataclass
class Submission:
    """A job's name, its log, and the file that takes what it prints.

    `since` is a time before it was submitted, by the clock of the disk, as the log's is; `gone`
    when it was first seen to have left the queue, by `time.monotonic`.
    """

    name: str
    log: Path
    output: Path
    since: float
    gone: float | None = None

    def own_log(self) -> str:
        """What the job has written into its log; empty if the log is of an earlier attempt."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_mtime >= self.since:
                return self.log.read_text(errors="replace")
        return ""

    def explain_early_end(self) -> None:
        """If the job ended before its own log began, log the last line that it printed."""
        if not self.own_log():
            printed = self.output.read_text(errors="replace") if self.output.exists() else ""
            last = ["nothing", *filter(str.strip, printed.splitlines())][-1]
            words = f"the job ended early and printed: {last} (all of it: {self.output})"
            logs.add_error(self.log, words)


class Submissions:
    """The jobs of one run; the name of its folder is in all their names, and in ``runs.tsv``."""

    refusals = ShardwiseError

    def __init__(self, results: Results, folder: Path) -> None:
        self._results, self._folder = results, folder
        self._unended: set[str] = set()
        self._asked = 0.0
        self._silent: dict[str, float] = {}  # since when a host has not responded
        self._accounting = True
        self._last_said: dict[str, float] = {}

    def wrapped(self, jobscript: str) -> str:
        """Snakemake's template of a job's script, with the marks of begin and end around it."""
        return _JOBSCRIPT.replace("{script}", jobscript)

    def submit(self, job: Any, script: str) -> tuple[str, Submission]:
        """Submit a job's script; the number it got, and what `look` needs to know of it.

        Raises InputError if Grid Engine does not take it; the job's log has its words too;
        TryAgain if it has not answered for ten minutes; a queue that is full has no such limit.
        """
        if not self._folder.exists():
            earlier_runs.remember(self._results, "uge", self._folder.name)
            self._folder.mkdir(parents=True)
        asked = {"rule": job.rule.name, "wildcards": job.wildcards_dict, "resources": job.resources}
        name = grid_engine.job_name(self._folder.name, asked, job.attempt)
        begun = self._folder / f"{name}.submitting"
        begun.touch()
        # A relative path, as a colon in it would have a meaning of its own.
        output = Path(os.path.relpath(self._folder / f"{name}.out"))
        submission = Submission(name, Path(job.log[0]), output, begun.stat().st_mtime)
        self._unended.add(name)
        try:
            exported = [key for key in os.environ if key.startswith("SHARDWISE_")]
            words = grid_engine.qsub_words(asked, name, str(output), exported)
            return self._insist(name, [*words, script, str(self._folder)]), submission
        except ShardwiseError as error:
            logs.add_error(submission.log, f"Grid Engine did not accept the job: {error}")
            if isinstance(error, InputError):  # else it may still arrive
                self._unended.discard(name)
            raise

    def _insist(self, name: str, words: list[str]) -> str:
        """Submit; if qmaster does not answer, wait for it, and never submit twice.

        A submission may have arrived although its answer did not, so the job is looked for first.
        A full queue is waited for as long as it takes: qmaster is there, and jobs end.
        """
        end, unheard = time.monotonic() + _AWAY_SECONDS, False
        while True:
            try:
                if unheard and (number := self._number_of(name)):
                    return number
                return grid_engine.submitted(grid_engine.call(words))
            except QueueFull as error:
                end = time.monotonic() + _AWAY_SECONDS
                message = (
                    f"the cluster accepts no more jobs now ({error}); waiting until some have "
                    "ended. --jobs limits the jobs of a run in the queue"
                )
            except TryAgain as error:
                unheard = True
                if time.monotonic() > end:
                    raise
                message = f"Grid Engine does not accept jobs now ({error}); trying again"
            self._say("submission", message)
            time.sleep(_PAUSE_SECONDS)

    def _number_of(self, name: str) -> str | None:
        """The number of a job that is in the queue, or that was there and ran."""
        queued = (job.number for job in grid_engine.query().jobs if job.name == name)
        return next(queued, None) or self._mark(f"{name}.number")

    def _mark(self, name: str) -> str | None:
        """The number in a file that a job has left; None if there is none, or only a part."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / name).read_text().strip() or None
        return None

    def look(self, jobs: Sequence[Any]) -> Iterator[tuple[Any, str]]:
        """What to tell Snakemake about each job: ``running``, ``success`` or ``failed``.

        What cannot be found out now, as when the disk is full, counts as ``running``.
        """
        queue = self._queue() if jobs else None
        for job in jobs:
            try:
                state = self._state(job.external_jobid, job.aux["submission"], queue)
            except Exception as error:
                state, fault = "running", f"{type(error).__name__}: {error}"
                self._say(
                    "fault",
                    f"the state of job {job.external_jobid}, and maybe of others, cannot be found "
                    f"({fault}); they count as running. Ctrl-C deletes the jobs of this run",
                )
            yield job, state

    def _queue(self) -> Queue | None:
        """The queue now; None, with a message, if Grid Engine does not answer."""
        try:
            queue = grid_engine.query()
            # Changing the folder makes a network disk show here what jobs have written.
            (self._folder / "looked").touch()
            (self._folder / "looked").unlink()
        except (TryAgain, OSError) as error:
            self._silent = {}  # all hosts are silent for half a minute after qmaster restarts
            self._say("queue", f"Grid Engine does not answer ({error}); its jobs count as running")
            return None
        self._asked = time.monotonic()
        self._silent = {host: self._silent.get(host, self._asked) for host in queue.unheard}
        return queue

    def _state(self, number: str, submission: Submission, queue: Queue | None) -> str:
        code = self._mark(f"{number}.exit")
        if code is None:
            reason = self._why_failed(number, submission, queue.job(number)) if queue else ""
            if not reason:
                return "running"
            # An error that the job itself reported tells more than how it was ended.
            own = logs.find_errors(submission.own_log())
            told = any(not error.startswith("ended by SIGTERM") for error in own)
            level = "WARNING" if told else "ERROR"
            logs.add_error(submission.log, f"the scheduler says: {reason}", level)
        elif code != "0":
            submission.explain_early_end()
        self._unended.discard(submission.name)
        return "success" if code == "0" else "failed"

    def _why_failed(self, number: str, submission: Submission, job: Job | None) -> str:
        """Why a job without a mark of its end has failed, and delete it; empty if it has not."""
        if job is None:
            return self._how_it_left(number, submission)
        submission.gone = None
        reason = self._trouble(job)
        try:
            if reason:
                grid_engine.delete([number])
        except TryAgain as error:  # it may still be in the queue: the next look deletes it
            self._say("deletion", f"job {number} cannot be deleted now ({error}); trying again")
            return ""
        return reason

    def _trouble(self, job: Job) -> str:
        """Why a job in the queue cannot end well; empty if it can."""
        if "E" in job.state:
            reason = grid_engine.error_reason(job.number)
            return f"it cannot start, state {job.state}: {reason}"
        silent = [since for host, since in self._silent.items() if host in job.hosts]
        lost = bool(silent) and self._asked - min(silent) >= UNHEARD_SECONDS
        return f"lost: its host {', '.join(job.hosts)} does not respond" if lost else ""

    def _how_it_left(self, number: str, submission: Submission) -> str:
        """Why a job has left the queue; empty while its mark may still arrive."""
        submission.gone = submission.gone or time.monotonic()
        waited = time.monotonic() - submission.gone >= _TRACE_SECONDS
        try:
            record = grid_engine.record(number, submission.name) if self._accounting else None
        except TryAgain:  # an accounting that was too slow once is not asked again
            self._accounting, record = False, None
        if record is not None and (waited or not record.well):
            return grid_engine.describe(record)
        if not waited:
            return ""
        if submission.output.exists():
            return "deleted or killed; the accounting does not know it"
        return "deleted while it waited in the queue"

    def _say(self, subject: str, text: str) -> None:
        """Write a line to stderr for the user; at most once per minute on each subject."""
        now = time.monotonic()
        if now - self._last_said.get(subject, -_MESSAGE_SECONDS) >= _MESSAGE_SECONDS:
            self._last_said[subject] = now
            tell(f"shardwise: {text}")

    def cancel(self) -> None:
        """Delete all jobs of the run from a separate process, if some were not seen to end."""
        if self._unended:
            self._unended.clear()
            follow.cancel_detached("uge", [self._folder.name])
