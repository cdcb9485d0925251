"""One Snakemake job a shard: what a new run owes to the jobs of an earlier one.

When Snakemake is killed, the jobs that it started live on. A second job for the same shard would
cost twice, and Snakemake would remove a file that the first has just finished. So a run that finds
living jobs of an earlier run on its results folder does not start: it says how to wait for them, or
how to cancel them. Jobs that work are known by a lock that each holds on one file of the results
folder, and that the kernel drops however they end; jobs that wait are known to the scheduler.
"""

import contextlib
import fcntl
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NoReturn

from shardwise.dispatch import slurm, uge
from shardwise.errors import TryAgain
from shardwise.paths import Results

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_SCHEDULERS = {"slurm": slurm, "uge": uge}
"""Who is asked for living jobs, by the names that `remember` notes."""

_HELD: list[BinaryIO] = []
"""Files whose locks this process holds to its end."""


def remember(results: Results, scheduler: str, name: str) -> None:
    """Note the name under which this run submits its jobs."""
    results.root.mkdir(parents=True, exist_ok=True)
    with open(results.runs, "a", encoding="utf-8") as file:
        file.write(f"{scheduler}\t{name}\t{time.strftime('%Y-%m-%dT%H:%M:%S')}\n")


@contextlib.contextmanager
def working(results: Results) -> Iterator[None]:
    """Hold the lock that says: a job works on these results."""
    with contextlib.ExitStack() as stack:
        # A disk that is full, read-only or without locks must not stop a job; its stage will say.
        with contextlib.suppress(OSError):
            results.living.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(results.living, "a+b"))
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _somebody_works(results: Results) -> bool:
    try:
        with open(results.living, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no job has ever worked here, or this disk knows no locks
    return False


def claim(results: Results) -> None:
    """Be the only run on these results until this process ends; end with 75 where that fails."""
    if not _hold(results.running):
        _refuse(f"another snakemake works on {results.root}; let it finish, then run again.")
    refuse_beside_living(results)


def _hold(path: Path) -> bool:
    """Lock a file for the life of this process; False where somebody else holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b")  # noqa: SIM115 - it stays open, and with it the lock
        _HELD.append(file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a disk without locks: Snakemake's own lock of the working directory remains
    return True


def _refuse(message: str) -> NoReturn:
    log.error(message)
    sys.exit(75)


def refuse_beside_living(results: Results) -> None:
    """End with 75 where jobs of an earlier run still wait or work on these results."""
    for name, scheduler in _SCHEDULERS.items():
        names = _names(results, name)
        if names and shutil.which(scheduler.CLIENT):
            _refuse_beside(results, scheduler, names)
    if _somebody_works(results):
        _refuse(
            f"jobs of an earlier run still work on {results.root}. Let them finish, or end them "
            "(see: squeue --me, qstat, or pgrep -af scripts/); then run the same command again."
        )


def _refuse_beside(results: Results, scheduler: ModuleType, names: list[str]) -> None:
    """End with 75 where a scheduler knows living jobs of these names, or does not answer."""
    try:
        living = scheduler.living(names)
    except TryAgain as error:
        _refuse(
            f"{scheduler.CLIENT} does not say whether jobs of an earlier run live ({error}); "
            "try again"
        )
    if living:
        see, cancel = scheduler.commands(names, living)
        _refuse(
            f"{len(living)} jobs of an earlier run still wait or work on {results.root}. "
            f"Let them finish (see: {see}), or cancel them ({cancel}); then run the same command "
            "again."
        )


def _names(results: Results, scheduler: str) -> list[str]:
    try:
        lines = results.runs.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.split("\t")[1] for line in lines if line.startswith(f"{scheduler}\t")]
