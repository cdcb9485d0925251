"""What a task of an array asks the scheduler for: from Snakemake's profile to the job that submits.

Under ``dispatch: array`` one job submits the tasks, not Snakemake itself. But only the main process
knows what the profile says of the tasks, so it writes that down just before the first job.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import InputError
from shardwise.files.paths import CACHE, Results
from shardwise.plan import plan

MOST_TASKS = 1000
"""Tasks of an array by default, at most: each costs the scheduler work, and a start of Python."""

RULE = "multiply"
"""The rule whose resources are those of a task."""


@dataclass(frozen=True)
class TaskRequest:
    """What tasks ask for."""

    scheduler: str  # ``slurm`` or ``uge``; empty if this machine has neither
    words: list[list[str]]  # for sbatch or qsub, at the first and each further try
    memory: list[int | None]  # MiB of host memory, likewise
    setup: str  # the site's set-up line, which each task runs first; empty if there is none

    @property
    def retries(self) -> int:
        """Tries after the first that the profile allows."""
        return len(self.words) - 1

    def at(self, attempt: int) -> tuple[list[str], int | None]:
        """The words and the memory of an attempt, counted from 1."""
        place = min(attempt, len(self.words)) - 1
        return self.words[place], self.memory[place]


def path(results: Results) -> Path:
    """The file in which the main process leaves this for the job that submits."""
    return CACHE / f"{plan.digest(str(results.root))}.recipe.json"


def load(file: Path) -> TaskRequest:
    """Read a recipe.

    Raises InputError if there is none, or this machine has no scheduler.
    """
    try:
        recipe = TaskRequest(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{file} cannot be read ({error}). It says what a task asks the scheduler for, and "
            "snakemake writes it when it runs under dispatch: array. By hand, submit an array of "
            "your own, whose tasks run multiply.py with --array-task"
        ) from None
    if not recipe.scheduler:
        raise InputError(
            "no scheduler here (neither sbatch nor qsub is on PATH); dispatch: pool computes on "
            "the GPUs of this machine"
        )
    return recipe
