"""What all schedulers share: arrays, their tasks, and how tasks end."""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from shardwise.errors import InputError, TryAgain

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::([1-9][0-9]{0,17}))?")

JOB_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
"""What the name of a job may look like: it becomes a word of a command."""

UNHEARD_SECONDS = float(os.environ.get("SHARDWISE_UNHEARD_SECONDS", "60"))
"""How long a host has to be silent before its jobs count as lost.

After a restart of qmaster all hosts are silent for half a minute. (Grid Engine itself calls a host
unheard only after five minutes, or after what the site has set as max_unheard.)
"""


class QueueFull(TryAgain):
    """The cluster has as many jobs, of this user or of all, as it allows."""


@dataclass(frozen=True)
class Array:
    """An array, as it was noted.

    ``run`` names its dispatch, ``name`` the array alone, and ``digest`` is the plan's. ``numbers``
    are those of its shards in the plan, counted from 0 and ascending. Its ``tasks``, as many or
    fewer, claim them (`array.claims`).
    """

    scheduler: str
    run: str
    digest: str
    name: str
    attempt: int
    numbers: tuple[int, ...]
    tasks: int


@dataclass(frozen=True)
class Tasks:
    """Tasks of one array that share a state, as the scheduler lists them."""

    number: str  # the array's, at the scheduler
    name: str
    indices: tuple[int, ...]
    where: str = ""  # the nodes on which they run; empty while they wait
    trouble: str = ""  # why they cannot or never will start; empty if nothing is wrong
    hopeless: bool = False  # whether a new submission would have the same trouble
    held: bool = False  # whether they wait for their user to release them
    silent: bool = False  # whether their node does not respond
    ending: bool = False  # whether the scheduler is cleaning up after them


@dataclass(frozen=True)
class Fate:
    """How a task ended, in the scheduler's words.

    ``certain`` says that the scheduler ended it; otherwise what the task left may still arrive: its
    receipt, if it ended ``well``.
    """

    words: str
    certain: bool
    well: bool = False


class Scheduler(Protocol):
    """What dispatches ask of a scheduler. A new one is a class with these methods, in `registry`.

    Every method that asks the scheduler raises `TryAgain` if it does not answer, which is never
    a reason to give a task up. A dispatch is named by its ``run``, an array by its ``number``.
    ``title`` is for messages; the command ``client`` is there where this machine can reach it.
    ``own_index`` are the shell's words by which a task sets its ``index``, and the ``job`` that is
    its array's number.
    """

    title: str
    client: str
    own_index: str

    def most_tasks(self) -> int:
        """The most tasks of an array; InputError: this scheduler takes no arrays."""

    def submit(self, array: Array, words: Sequence[str], script: Path, throttle: int | None) -> str:
        """Submit an array and return its number; the scheduler may take it and not answer.

        A task asks for these words, of the recipe; ``throttle`` tasks run at once, or as many as
        the scheduler lets. Raises QueueFull if it takes no more now; InputError: it refuses.
        """

    def tasks(self, runs: Iterable[str]) -> list[Tasks]:
        """The tasks of these dispatches that wait or work, grouped by state."""

    def fates(
        self, runs: Iterable[str], gone: Mapping[str, tuple[str, Sequence[int]]]
    ) -> dict[tuple[str, int], Fate]:
        """How tasks that have left the queue ended, by array and index, as far as that is known.

        ``gone`` has, by the name of each array, its number and the indices of the tasks.
        """

    def cancel_tasks(self, number: str, which: Sequence[int]) -> None:
        """Cancel tasks of an array, by index; it does not matter if some are already gone."""

    def cancel(self, run: str) -> bool:
        """Cancel all tasks of a dispatch; return whether there were any."""

    def living(self, names: Iterable[str]) -> list[str]:
        """The numbers of the jobs with these names that still wait or work."""

    def run_time(self, words: Sequence[str]) -> float | None:
        """Seconds that a task with these options may run, if a task cannot ask for that itself."""

    def end_of_task(self, run_time: float | None) -> float | None:
        """When this task, which begins now, is ended, in seconds since 1970; None: not known.

        ``run_time`` is as :meth:`run_time` had it.
        """

    def commands(self, runs: Iterable[str], numbers: Iterable[str]) -> tuple[str, str]:
        """The commands that show these jobs, and that cancel them."""


def ask(
    words: Sequence[str], seconds: float, advice: str, refusal: Callable[[str, int], Exception],
    env: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """What a command of a scheduler prints.

    ``refusal`` makes the error to raise of what a failed command has printed, and of its exit code.
    Raises TryAgain if it does not answer in ``seconds``; InputError, with the advice, where
    there is no such command.
    """
    try:
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TryAgain(f"{words[0]} did not answer within {seconds:g} s") from None
    except FileNotFoundError:
        raise InputError(f"{words[0]} is not on PATH; {advice}") from None
    if done.returncode:
        text = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        raise refusal(text or f"{words[0]} ended with {done.returncode}", done.returncode)
    return done.stdout


def prefix(run: str) -> str:
    """The beginning of the names of all jobs of a run."""
    return f"sw-{run}-"


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text, such as ``0-9,12,15-20``."""
    parts = []
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *others = (number for _, number in pairs)
        parts.append(f"{first}-{others[-1]}" if others else str(first))
    return ",".join(parts)


def numbers(text: str) -> Iterator[int]:
    """The numbers in a text such as ``0-9,12,15-20:5``; a limit of Slurm's (``%4``) is left out.

    Raises ValueError if it is no such text.
    """
    for part in text.partition("%")[0].strip("[]").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r:.100} is no number and no range")
        low, high, step = match.groups()
        yield from range(int(low), int(high or low) + 1, int(step or 1))
