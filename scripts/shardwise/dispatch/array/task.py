"""A task of an array job: its script, its index, the marks it leaves. Standard library only."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from shardwise.dispatch.schedulers.common import Array
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.host import SCRIPTS
from shardwise.plan.plan import Plan

_FIRST = {"SLURM_ARRAY_TASK_ID": 0, "SGE_TASK_ID": 1}
"""The variables that hold the number of a task, and the number of the first one by default."""


def number(environ: Mapping[str, str] = os.environ) -> int:
    """The number in the plan, counted from 0, of the shard that this task stands for.

    Raises InputError outside of an array job.
    """
    own, lowest = own_and_first_index(environ)
    return own - lowest


def shard(plan: Plan, number: int) -> str:
    """The shard with a number; the plan may hold only its first and last rows.

    Raises InputError if the plan has no such shard.
    """
    ids = list(plan.shards)
    last = int(ids[-1])
    if not 0 <= number <= last:
        raise InputError(
            f"this task of the array stands for shard number {number}, but {plan.results.plan} "
            f"has 0 to {last}; submit with --array=0-{last} under Slurm, -t 1-{last + 1} under "
            "Grid Engine"
        )
    return f"{number:0{len(ids[-1])}}"


def own_and_first_index(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The index of this task, as its scheduler counts, and that of the first task.

    Raises InputError outside of an array job.
    """
    variables = {name: environ[name] for name in _FIRST if name in environ}
    for name, text in variables.items():
        if text.isdecimal():
            return int(text), _FIRST[name]
    values = (
        ", ".join(f"{name}={text}" for name, text in variables.items()) or "none of them is set"
    )
    raise InputError(
        f"--array-task: no task of an array job here: {' or '.join(_FIRST)} must be a number "
        f"({values}); submit with sbatch --array or qsub -t, or name a shard with --shard"
    )


class Marks:
    """How tasks of an array left shards that are not whole: a file with an exit code for each.

    0 says that the shard was handed back through no fault of its own.
    """

    def __init__(self, results: Results, array: Array) -> None:
        self._prefix = f"{results.array_folder(array.run) / array.name}."

    def code(self, shard: str) -> int | None:
        """What the mark of a shard says; None if there is none."""
        try:
            return int(Path(self._prefix + shard).read_text())
        except (OSError, ValueError):
            return None

    def leave(self, shard: str, code: int) -> None:
        """Mark a shard in one step; if the disk is full, only the mark is lost."""
        mark = Path(self._prefix + shard)
        with contextlib.suppress(OSError):
            part = mark.with_name(f"{mark.name}.part")
            part.write_text(f"{code}\n")
            part.replace(mark)


def last_begun(results: Results, shards: Iterable[str]) -> str:
    """The shard that a task was computing, out of its claimed shards that have not ended, in order.

    It may still have been writing the first when it began the next.
    """

    def start(shard: str) -> float:
        with contextlib.suppress(OSError):  # it was not begun
            return results.starts(shard).stat().st_mtime
        return 0.0

    return max(islice(shards, 2), key=start)


_TASK = """\
#!/bin/bash
# A task of an array: it claims shards, computes them, and claims more.
{own_index}
exec >>{array}."$index".log 2>&1
[ -e {array}.number ] || echo "$job" >{array}.number
{setup}\
exec {command}
"""

_SETUP = """\
{{
{line}
}} || {{
  code=$?
  echo "$(date '+%F %T,000') ERROR the profile's set-up line (precommand) ended with $code"
  exit 75
}}
"""


def script(
    plan: Plan,
    array: Array,
    own_index: str,
    setup: str,
    memory: int | None,
    run_time: float | None = None,
) -> str:
    """The script of every task of an array.

    Parameters
    ----------
    own_index
        The scheduler's; see `Scheduler`.
    setup
        The site's set-up line, or empty.
    memory
        MiB of host memory, or None.
    run_time
        Seconds that a task may run; None if it asks its scheduler itself.
    """
    command = [sys.executable, str(SCRIPTS / "dispatch.py"), f"--plan={plan.results.plan}"]
    command += ["--dispatch=array", f"--array-task={array.name}"]
    command += [f"--mem-mb={memory}"] if memory else []
    words = shlex.join(command)
    if run_time:  # it includes the set-up line, which may take long
        words += f' --run-time="$((SECONDS < {run_time:.0f} ? {run_time:.0f} - SECONDS : 1))"'
    return _TASK.format(
        own_index=own_index,
        array=shlex.quote(str(plan.results.array_folder(array.run).absolute() / array.name)),
        setup=_SETUP.format(line=setup) if setup else "",
        command=words,
    )
