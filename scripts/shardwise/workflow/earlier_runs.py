"""How a new run respects the jobs of an earlier one.

When Snakemake is killed, its jobs live on. A second job for the same shard would cost twice. So a
run that finds living jobs on its results folder does not start: it says how to wait for them, or
how to cancel them. Jobs that work hold a lock on a file of that folder; the scheduler knows those
that wait, by the names that were noted before they were submitted.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shardwise.errors import TryAgain
from shardwise.files.paths import Results
from shardwise.records.locks import dispatcher, is_job_locked, take_lock
from shardwise.work import sites
from shardwise.work.schedulers import JOB_NAME, Scheduler

_locked: list[BinaryIO] = []
"""Files whose locks this process holds to its end."""


def lock_results(results: Results) -> None:
    """Be the only run on these results until this process ends; TryAgain if that fails."""
    busy = f"another snakemake works on {results.root}; let it finish, then run again."
    with suppress(OSError):  # a folder that cannot be written: the first job reports it
        _locked.append(take_lock(results.running, busy))
    refuse_beside_living(results)
    shutil.rmtree(results.claims, ignore_errors=True)  # those of a run that was killed


def refuse_beside_living(results: Results) -> None:
    """Raise TryAgain if jobs of an earlier run still wait or work."""
    rows = _rows(results.runs)
    for title, scheduler in sites.ALL.items():
        names = sorted({row[1] for row in rows if row[0] == title})
        if names and shutil.which(scheduler.client):
            _refuse_beside(results, scheduler, names)
    if is_job_locked(results.living):
        held = is_job_locked(results.dispatching)
        who = f", for {dispatcher(results)}" if held else ""
        raise TryAgain(
            f"jobs of an earlier run still work on {results.root}{who}. Let them finish, or end "
            "them (see: squeue --me, qstat, or pgrep -af scripts/); then run the same command "
            "again."
        )


def _refuse_beside(results: Results, scheduler: Scheduler, names: list[str]) -> None:
    """Raise TryAgain if a scheduler knows living jobs with these names, or does not answer."""
    try:
        living = scheduler.living(names)
    except TryAgain as error:
        words = f"{scheduler.client} does not say whether jobs of an earlier run live ({error})"
        raise TryAgain(f"{words}; try again") from None
    if living:
        see, cancel = scheduler.see(living)
        raise TryAgain(
            f"{len(living)} jobs of an earlier run still wait or work on {results.root}. "
            f"Let them finish (see: {see}), or cancel them ({cancel}); then run the same command "
            "again."
        )


def _rows(path: Path) -> list[list[str]]:
    """The rows of a table in which names of jobs are noted: scheduler, name, and more.

    A name that no job can have is left out, as a line that was cut off is.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = [line.split("\t") for line in lines]
    return [row for row in rows if len(row) > 1 and JOB_NAME.fullmatch(row[1])]
