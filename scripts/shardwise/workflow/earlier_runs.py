"""How a new run respects the jobs of an earlier one.

When Snakemake is killed, its jobs live on, and a second job for the same shard would cost twice. So
a run does not start beside living jobs. Those that run hold a lock on a file of the results folder;
those that wait have names that were noted there before they were submitted.
"""

import re
import shutil
from contextlib import suppress
from typing import BinaryIO

from shardwise.errors import TryAgain
from shardwise.files.paths import Results
from shardwise.records.locks import is_job_locked, take_lock
from shardwise.work import schedulers

_MOST_NAMES = 1000
"""Jobs noted before these have ended: each run since then would not have begun beside them."""

_COMMANDS = {"slurm": ("squeue --me", "scancel"), "uge": ("qstat", "qdel")}
"""The commands that show a user's jobs, and that cancel some."""

_NOTED = re.compile(r"^(\w+)\t(\w[\w.-]*)(?=[\t\n])", re.ASCII | re.MULTILINE)
"""A scheduler, and the name of jobs there; other lines are skipped."""

_locked: list[BinaryIO] = []
"""Files whose locks this process holds to its end."""


def lock_results(results: Results) -> None:
    """Become the only run on these results until this process ends; else raise TryAgain."""
    busy = f"another run works on {results.root}; let it finish, then give the same command again."
    with suppress(OSError):  # a folder that cannot be written: the first job reports it
        _locked.append(take_lock(results.running, busy))
    refuse_beside_living(results)
    shutil.rmtree(results.claims, ignore_errors=True)  # those of a run that was killed


def refuse_beside_living(results: Results) -> None:
    """Raise TryAgain if jobs of an earlier run still wait or work, or a scheduler is silent."""
    see, cancel, noted = "squeue --me, qstat, or pgrep -af scripts/", "", list[tuple[str, str]]()
    with suppress(OSError):  # no job was noted
        text = results.runs.read_text(encoding="utf-8", errors="replace")
        noted = _NOTED.findall(text)[-_MOST_NAMES:]
    for scheduler, client in schedulers.CLIENTS.items():
        names = sorted({name for title, name in noted if title == scheduler})
        if names and shutil.which(client) and (living := schedulers.living(scheduler, names)):
            jobs = dict.fromkeys(number.partition("_")[0] for number in living)  # of arrays once
            see, cancels = _COMMANDS[scheduler]
            cancel = f" ({cancels} {' '.join(jobs)})"
    if cancel or is_job_locked(results.living):
        raise TryAgain(
            f"jobs of an earlier run still wait or work on {results.root}. Let them finish (see: "
            f"{see}), or cancel them{cancel}; then run the same command again."
        )
