"""One run under Grid Engine: submit its jobs, follow them, and leave none behind.

A job leaves two files in the folder of the run: NAME.number when it starts, NUMBER.exit (0 or 1) at
its end. So success depends on a file of the job alone, and not on the accounting, which is late on
some clusters and missing on others. Snakemake reaches this module through the plugin
`snakemake_executor_plugin_shardwise_grid_engine`.
"""

import atexit
import functools
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, ShardwiseError, TryAgain, tell
from shardwise.files.paths import CACHE
from shardwise.work import schedulers
from shardwise.work.schedulers import call
from shardwise.workflow import preflight

_PAUSE_SECONDS = 5

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


def begin(run: Any, executor: Any) -> None:
    """Make the executor of ``profiles/uge`` submit its jobs through this module."""
    if executor.submissions is None:
        os.environ.pop("SNAKEMAKE_PROFILE", None)  # useless in a job, which may get all variables
        folder = (CACHE / "uge" / os.urandom(3).hex()).absolute()
        folder.mkdir(parents=True)
        executor.submissions = Submissions(folder)
        atexit.register(executor.submissions.cancel)
        executor.jobscript = JOBSCRIPT.replace("{script}", executor.jobscript)
    schedulers.remember(run.results, "uge", executor.submissions.prefix)
    executor.submissions.runs.append(run)


class Submissions:
    """The jobs of all ``runs`` in this process: each is a module that uses this workflow.

    Their names begin with a prefix that ``runs.tsv`` notes.
    """

    def __init__(self, folder: Path) -> None:
        self.runs: list[Any] = []
        self._folder, self.prefix = folder, f"sw-{folder.name}-"
        self._unended = set[str]()  # names of jobs
        self._seen: dict[str, float] = {}  # when a job last waited or worked, by number
        self._queued = set[str]()  # the numbers of those in the queue
        self._say = functools.cache(tell)  # each message once

    def submit(self, job: Any, script: str) -> tuple[str, str]:
        """Submit a job's script; return the job's number, or why Grid Engine refuses the job.

        If qmaster does not answer or the queue is full, wait, and never submit twice: a submission
        may have arrived although its answer did not, so look for the job first.
        """
        name, unheard = self._name(job), False
        self._unended.add(name)
        while True:
            try:
                if unheard:  # it may be in the queue, or have been there and run
                    queue = schedulers.queue().items()
                    queued = (number for number, (own, _) in queue if own == name)
                    if found := next(queued, None) or self._mark(f"{name}.number"):
                        return found, ""
                own = schedulers.submission(name, str(self._folder / f"{name}.out"))
                asked = preflight.site_words(job.resources)
                answer = call(*own, *asked, script, str(self._folder))
                if match := re.search(r"(?:^|\s)(\d+)(?:\.\S+)?\s*$", answer):
                    return match[1], ""
                raise TryAgain(f"qsub answered {answer.strip()!r}, not the number of a job")
            except InputError as error:
                self._unended.discard(name)
                self._note(job, preflight.refused(job.rule.name, error))
                return "", str(error)
            except TryAgain as error:
                unheard = True
                self._say(f"shardwise: Grid Engine accepts no job now ({error}); trying again")
            time.sleep(_PAUSE_SECONDS)

    def _name(self, job: Any) -> str:
        """The name under which a try of a job is submitted."""
        parts = (job.rule.name, *job.wildcards_dict.values(), str(job.attempt))
        return self.prefix + re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(parts))

    def _mark(self, name: str) -> str | None:
        """The number in a file that a job has left; None if that is missing or still empty."""
        with suppress(OSError):
            return (self._folder / name).read_text().strip() or None
        return None

    def look(self, jobs: Sequence[Any]) -> Iterator[tuple[Any, str]]:
        """What to tell Snakemake about each job: ``running``, ``success``, or why it has failed."""
        numbers = {info.external_jobid for info in jobs}
        try:
            jobs_there = schedulers.queue()
            self._queued = numbers & jobs_there.keys()
            living = {number for number in self._queued if not jobs_there[number][1]}
            # Changing the folder makes a network disk show here what jobs have written.
            (self._folder / "looked").touch()
            (self._folder / "looked").unlink()
        except (TryAgain, OSError) as error:
            living = numbers  # also hosts are silent for a while after qmaster restarts
            self._say(f"shardwise: Grid Engine does not answer ({error}); jobs count as running")
        self._seen |= dict.fromkeys(living, time.monotonic())
        for info in jobs:
            yield info, self._state(info)

    def _state(self, info: Any) -> str:
        number, name = info.external_jobid, self._name(info.job)
        if code := self._mark(f"{number}.exit"):
            why = f"that it ended: see {self._folder / name}.out"
        else:  # it may be late, or its host come back
            silence = time.monotonic() - self._seen.setdefault(number, time.monotonic())
            if silence < schedulers.UNHEARD_SECONDS:
                return "running"
            why = f"killed, deleted, lost, or past a limit (see: qacct -j {number})"
            with suppress(ShardwiseError):
                told = re.search(r"\nerror reason +\d+: +(.*)", call("qstat", "-j", number))
                why = f"it cannot start: {told[1]}" if told else why
            try:
                if number in self._queued:
                    call("qdel", number)
            except ShardwiseError:  # the next look tries again
                return "running"
        self._unended.discard(name)
        if code == "0":
            return "success"
        self._note(info.job, TryAgain(f"the scheduler says {why}"))
        return why

    def _note(self, job: Any, error: Exception) -> None:
        """Write why a job has failed, unless the job has done so."""
        with suppress(OSError):  # then the run notes it once more, in its own thread
            for run in self.runs:
                run.failures_of(job, error)

    def cancel(self) -> None:
        """Delete all jobs of the run from a separate process, if some were not seen to end."""
        if self._unended:
            self._unended.clear()
            schedulers.cancel("uge", f"{self.prefix}*")
