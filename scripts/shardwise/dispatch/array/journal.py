"""The journal of submitted arrays: ``arrays.tsv``."""

import os
import time
from itertools import islice
from pathlib import Path

from shardwise.dispatch.schedulers.common import JOB_NAME, Array, numbers, ranges
from shardwise.errors import IntegrityError, writing
from shardwise.files.paths import Results
from shardwise.files.small import open_own
from shardwise.plan.cut import MAX_SHARDS

_FIELDS = ("scheduler", "run", "digest", "name", "attempt", "numbers", "tasks", "noted")


def note(results: Results, array: Array) -> None:
    """Add a line on an array that is about to be submitted; it is on the disk at return."""
    values = (*(getattr(array, name) for name in _FIELDS[:5]), ranges(array.numbers), array.tasks)
    line = "\t".join(map(str, (*values, time.strftime("%Y-%m-%dT%H:%M:%S"))))
    append(results.arrays, line, "\t".join(_FIELDS) + "\n")


def append(path: Path, line: str, head: str = "") -> None:
    """Add a line to a table of notes; it is on the disk at return.

    A last line that a full disk cut off is ended first; otherwise it would swallow the new one.
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
    """All arrays that were noted, in order; a line that was cut off is skipped.

    Raises IntegrityError if a whole line is damaged, as tasks of its array may live.
    """
    try:
        lines = results.arrays.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    arrays = []
    for number, line in enumerate(lines[1:], 2):
        fields = line.split(b"\t")
        if len(fields) == len(_FIELDS):
            try:
                arrays.append(_array(*(field.decode("ascii") for field in fields[:-1])))
            except ValueError as error:
                raise IntegrityError(
                    f"{results.arrays}, line {number}: is damaged ({error!s:.200}); see whether "
                    "tasks of an earlier run live (squeue --me, qstat), end them, and remove "
                    "the line"
                ) from error
    return arrays


def _array(
    scheduler: str, run: str, digest: str, name: str, attempt: str, text: str, tasks: str
) -> Array:
    if not all(JOB_NAME.fullmatch(word) for word in (scheduler, run, name)):
        raise ValueError("the name of the array is not valid")
    if not (attempt.isdigit() and tasks.isdigit()):
        raise ValueError("the attempt or the tasks are not a number")
    shards = tuple(islice(numbers(text), MAX_SHARDS + 1))
    if len(shards) > MAX_SHARDS:
        raise ValueError(f"more than {MAX_SHARDS} shards")
    if not 0 < int(tasks) <= len(shards):
        raise ValueError(f"{tasks} tasks for {len(shards)} shards")
    return Array(scheduler, run, digest, name, int(attempt), shards, int(tasks))
