"""Arrays that were submitted: what ``results/arrays.tsv`` notes of them, and their indices as text.

An array is noted before it is submitted. So whatever dies, and whatever answer is lost, the next
run knows by which names to look for tasks that live, and which shard each of them computes.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from shardwise.errors import IntegrityError, writing
from shardwise.files.paths import Results
from shardwise.files.small import open_own
from shardwise.plan.cut import MAX_SHARDS

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::([1-9][0-9]{0,17}))?")
_FIELDS = ("scheduler", "run", "digest", "name", "attempt", "first", "numbers", "noted")


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


def note(results: Results, array: Array) -> None:
    """Add a line on an array that is about to be submitted; it is on the disk at return."""
    values = (*(getattr(array, name) for name in _FIELDS[:6]), ranges(array.numbers))
    line = "\t".join(map(str, (*values, time.strftime("%Y-%m-%dT%H:%M:%S"))))
    append(results.arrays, line, "\t".join(_FIELDS) + "\n")


def append(path: Path, line: str, head: str = "") -> None:
    """Add a line to a table of notes; it is on the disk at return.

    A last line that was cut off, as a full disk does, is ended first: else it would hide the new.
    """
    with writing(path), open_own(path, "a+b") as file:
        length = file.seek(0, os.SEEK_END)
        before = head
        if length:
            file.seek(-1, os.SEEK_END)
            before = "" if file.read() == b"\n" else "\n"
        file.write(f"{before}{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def noted(results: Results) -> list[Array]:
    """All arrays that were noted, in order; a line that was cut off speaks of none.

    Raises
    ------
    IntegrityError
        Where a whole line says what no dispatch has noted: tasks of it may live.
    """
    try:
        lines = results.arrays.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines[1:], 2):
        fields = line.split(b"\t")
        if len(fields) == len(_FIELDS):
            try:
                found.append(_array(*(field.decode("ascii") for field in fields[:-1])))
            except ValueError as error:
                raise IntegrityError(
                    f"{results.arrays}, line {number}: is damaged ({error!s:.200}); see whether "
                    "tasks of an earlier run live (squeue --me, qstat), end them, and remove "
                    "the line"
                ) from error
    return found


def _array(
    scheduler: str, run: str, digest: str, name: str, attempt: str, first: str, text: str
) -> Array:
    if not all(JOB_NAME.fullmatch(word) for word in (scheduler, run, name)):
        raise ValueError("what names the array is no name")
    if not (attempt.isdigit() and first.isdigit()):
        raise ValueError("the attempt or the first shard is no number")
    known = tuple(islice(numbers(text), MAX_SHARDS + 1))
    if len(known) > MAX_SHARDS:
        raise ValueError(f"more than {MAX_SHARDS} shards")
    return Array(scheduler, run, digest, name, int(attempt), int(first), known)
