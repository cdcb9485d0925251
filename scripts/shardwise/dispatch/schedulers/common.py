"""What all schedulers share: arrays, their tasks, and how tasks end."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::([1-9][0-9]{0,17}))?")


JOB_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
"""What the name of a job may be: it becomes a word of a command."""


@dataclass(frozen=True)
class Array:
    """An array, as it was noted.

    ``run`` names its dispatch, ``name`` the array alone, and ``digest`` is the plan's. ``numbers``
    are those of its shards in the plan, counted from 0 and in order; how an index of the scheduler
    follows from them, the scheduler's module says. ``first`` is what Slurm's tasks add to theirs.
    """

    scheduler: str
    run: str
    digest: str
    name: str
    attempt: int
    first: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Tasks:
    """Tasks of one array that share a state, as the scheduler lists them.

    Attributes
    ----------
    number
        The array's, at the scheduler.
    indices
        Of the tasks, as the scheduler counts them.
    where
        The nodes on which they run; empty while they wait.
    trouble
        Why they cannot start, or never will; empty where nothing is wrong.
    hopeless
        Whether a new submission would meet the same trouble.
    held
        Whether they wait until their user releases them.
    silent
        Whether nothing is heard of their node.
    ending
        Whether the scheduler is cleaning up behind them.
    """

    number: str
    name: str
    indices: tuple[int, ...]
    where: str = ""
    trouble: str = ""
    hopeless: bool = False
    held: bool = False
    silent: bool = False
    ending: bool = False


@dataclass(frozen=True)
class Fate:
    """How a task ended, in the scheduler's words.

    ``certain`` says that the scheduler ended it; else what the task itself left may still arrive:
    its receipt, where it ended ``well``.
    """

    words: str
    certain: bool
    well: bool = False


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text, such as ``0-9,12,15-20``."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    parts = []
    for _, pairs in runs:
        found = [number for _, number in pairs]
        parts.append(f"{found[0]}-{found[-1]}" if len(found) > 1 else str(found[0]))
    return ",".join(parts)


def numbers(text: str) -> Iterator[int]:
    """The numbers in a text such as ``0-9,12,15-20:5``; a limit of Slurm's (``%4``) is left out.

    Raises
    ------
    ValueError
        Where it is no such text.
    """
    for part in text.partition("%")[0].strip("[]").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r:.100} is no number and no range")
        low, high, step = match.groups()
        yield from range(int(low), int(high or low) + 1, int(step or 1))
