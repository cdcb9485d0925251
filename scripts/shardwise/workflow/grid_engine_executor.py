"""One run under Grid Engine: submit its jobs, follow them, and leave none behind.

A job leaves two files in the folder of the run: NAME.number when it starts, NUMBER.exit (0 or 1) at
its end. So success depends on a file of the job alone, and not on the accounting, which is late on
some clusters and missing on others. Snakemake reaches this module through the plugin
`snakemake_executor_plugin_shardwise_grid_engine`.
"""

import atexit
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, ShardwiseError, TryAgain, tell
from shardwise.files.paths import CACHE, Results
from shardwise.work import grid_engine, schedulers
from shardwise.work.grid_engine import GridEngine, Job
from shardwise.work.schedulers import QueueFull
from shardwise.workflow import failed, recipe

_PAUSE_SECONDS, _TRACE_SECONDS = 5, 10  # once a job has left, its exit file may be late

JOBSCRIPT = """\
#!/bin/bash
# If the submission got no answer, its number is found here, even if the job ends at once.
echo "$JOB_ID" >"$1/$JOB_NAME.number"
export PYTHONSAFEPATH=1 # as under Slurm, whose jobs get all variables
(
{script}
)
code=$?
[ "$code" = 0 ] || code=1 # 99 and 100 have a meaning for Grid Engine
# The mark of the end, written in one step. Without it the job counts as killed.
echo "$code" >"$1/$JOB_ID.part" && mv "$1/$JOB_ID.part" "$1/$JOB_ID.exit" || exit 1
exit "$code"
"""
"""Snakemake's script of a job, within code that writes the two files."""


def begin(results: Results, executor: Any) -> None:
    """Make the executor of ``profiles/uge`` submit its jobs through this module."""
    os.environ.pop("SNAKEMAKE_PROFILE", None)  # useless in a job, which may get all variables
    submissions = Submissions(results, (CACHE / "uge" / os.urandom(3).hex()).absolute())
    atexit.register(submissions.cancel)
    executor.submissions = submissions
    executor.jobscript = JOBSCRIPT.replace("{script}", executor.jobscript)


class Submissions:
    """The jobs of one run; their names begin with a prefix that ``runs.tsv`` notes."""

    def __init__(self, results: Results, folder: Path) -> None:
        self._results, self._folder, self._prefix = results, folder, f"sw-{folder.name}-"
        self._unended = set[str]()  # names of jobs
        self._asked, self._told = 0.0, ""
        self._gone: dict[str, float] = {}  # since when the queue lacks a job, by number
        self._silent: dict[str, float] = {}  # since when a host has not responded

    def submit(self, job: Any, script: str) -> tuple[str, str]:
        """Submit a job's script; return the job's number, or why Grid Engine refuses the job.

        If qmaster does not answer or the queue is full, wait, and never submit twice: a submission
        may have arrived although its answer did not, so look for the job first.
        """
        if not self._folder.exists():
            schedulers.remember(self._results, "uge", self._prefix)
            self._folder.mkdir(parents=True)
        name, unheard = self._name(job), False
        self._unended.add(name)
        while True:
            try:
                if unheard and (number := self._number_of(name)):
                    return number, ""
                own = grid_engine.submission(name, str(self._folder / f"{name}.out"))
                asked = recipe.site_words(job.resources)
                answer = grid_engine.call(*own, *asked, script, str(self._folder))
                if match := re.search(r"(?:^|\s)(\d+)(?:\.\S+)?\s*$", answer):
                    return match[1], ""
                raise TryAgain(f"qsub answered {answer.strip()!r}, not the number of a job")
            except InputError as error:
                self._unended.discard(name)
                return "", f"Grid Engine {failed.REFUSED}{error}"
            except TryAgain as error:
                unheard |= not isinstance(error, QueueFull)
                self._say(f"Grid Engine accepts no job now ({error}); trying again")
            time.sleep(_PAUSE_SECONDS)

    def _name(self, job: Any) -> str:
        """The name under which a try of a job is submitted."""
        parts = (job.rule.name, *job.wildcards_dict.values(), str(job.attempt))
        return self._prefix + re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(parts))

    def _number_of(self, name: str) -> str | None:
        """The number of a job that is in the queue, or that was there and ran."""
        queued = (job.number for job in grid_engine.queue() if job.name == name)
        return next(queued, None) or self._mark(f"{name}.number")

    def _mark(self, name: str) -> str | None:
        """The number in a file that a job has left; None if that is missing or still empty."""
        with suppress(OSError):
            return (self._folder / name).read_text().strip() or None
        return None

    def look(self, jobs: Sequence[Any]) -> Iterator[tuple[Any, str]]:
        """What to tell Snakemake about each job: ``running``, ``success``, or why it has failed."""
        try:
            queue: list[Job] | None = grid_engine.queue()
            # Changing the folder makes a network disk show here what jobs have written.
            (self._folder / "looked").touch()
            (self._folder / "looked").unlink()
            now = self._asked = time.monotonic()
            old, silent = self._silent, [job.host for job in queue if job.silent]
            self._silent = {host: old.get(host, now) for host in silent}
        except (TryAgain, OSError) as error:
            queue, self._silent = None, {}  # hosts are silent for a while after qmaster restarts
            self._say(f"Grid Engine does not answer ({error}); its jobs count as running")
        for info in jobs:
            yield info, self._state(info, queue)

    def _state(self, info: Any, queue: list[Job] | None) -> str:
        number, name = info.external_jobid, self._name(info.job)
        code = self._mark(f"{number}.exit")
        why = "" if code or queue is None else self._why_failed(number, queue)
        if not code and not why:
            return "running"
        self._unended.discard(name)
        reason = failed.SAYS + (why or f"that it ended: see {self._folder / name}.out")
        return "success" if code == "0" else reason

    def _why_failed(self, number: str, queue: list[Job]) -> str:
        """Why a job without an exit file has failed, or empty; one still queued is then deleted."""
        own, now, reason = [job for job in queue if job.number == number], self._asked, ""
        if not own:
            late = now - self._gone.setdefault(number, now) >= _TRACE_SECONDS
            return grid_engine.how_it_ended(number) if late else ""
        self._gone.pop(number, None)
        for job in own:
            if "E" in job.state:
                why = grid_engine.why_it_cannot_start(number)
                reason = f"it cannot start, state {job.state}: {why}"
            if now - self._silent.get(job.host, now) >= schedulers.UNHEARD_SECONDS:
                reason = f"lost: its host {job.host} does not respond"
        if reason:
            with suppress(ShardwiseError):  # the next look tries again
                grid_engine.call("qdel", number)
                return reason
        return ""

    def _say(self, text: str) -> None:
        """Write a line to stderr for the user, unless it was the last one."""
        if text != self._told:
            self._told = text
            tell(f"shardwise: {text}")

    def cancel(self) -> None:
        """Delete all jobs of the run from a separate process, if some were not seen to end."""
        if self._unended:
            self._unended.clear()
            schedulers.cancel_detached(GridEngine().cancel(f"{self._prefix}*"))
