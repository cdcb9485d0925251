"""How a new run respects the jobs of an earlier one.

When Snakemake is killed, its jobs live on. A second job for the same shard would cost twice. So a
run that finds living jobs on its results folder does not start: it says how to wait for them, or
how to cancel them. Running jobs hold a lock on a file of that folder. For waiting jobs the
scheduler is asked, by the names that were noted before the jobs were submitted.
"""

import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shardwise.errors import TryAgain
from shardwise.files.paths import Results
from shardwise.records.locks import is_job_locked, take_lock
from shardwise.work.array import SITES
from shardwise.work.schedulers import JOB_NAME

_MOST_NAMES = 1000
"""Jobs noted before these have ended: each run since then would not have begun beside them."""

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
    see, cancel, living = "squeue --me, qstat, or pgrep -af scripts/", "", []
    for title, names in noted_names(results.runs).items():
        if title in SITES and shutil.which(SITES[title].client) and not living:
            living = SITES[title].living(sorted(names))
            see, cancel = SITES[title].see(living) if living else (see, cancel)
    if living or is_job_locked(results.living):
        raise TryAgain(
            f"jobs of an earlier run still wait or work on {results.root}. Let them finish (see: "
            f"{see}), or cancel them{f' ({cancel})' if cancel else ''}; then run the same command "
            "again."
        )


def noted_names(path: Path) -> dict[str, set[str]]:
    """The last noted names of jobs, by scheduler; a line without a valid name is skipped."""
    names, text = defaultdict[str, set[str]](set), ""
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines()[-_MOST_NAMES:]:
        title, name, *_ = f"{line}\t".split("\t")
        if JOB_NAME.fullmatch(name):
            names[title].add(name)
    return names
