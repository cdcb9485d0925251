"""A task of an array job: which shard of the plan is its own. Standard library only."""

from collections.abc import Mapping

from shardwise.errors import InputError
from shardwise.plan.plan import Plan

_FIRST = {"SLURM_ARRAY_TASK_ID": 0, "SGE_TASK_ID": 1}
"""The variables that hold the number of a task, and the number of the first one by default."""


def number(first: int, environ: Mapping[str, str]) -> int:
    """The number in the plan, from 0 on, of the shard of this task: first + index.

    Raises
    ------
    InputError
        Outside of an array job.
    """
    return first + _index(environ)


def shard(plan: Plan, number: int) -> str:
    """The shard of a number; the plan may hold no other rows but the first and the last.

    Raises
    ------
    InputError
        Where the plan has no such shard.
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


def _index(environ: Mapping[str, str]) -> int:
    """The index of this task, counted from 0 on."""
    found = {name: environ[name] for name in _FIRST if name in environ}
    for name, text in found.items():
        if text.isdecimal():
            return int(text) - _FIRST[name]
    said = ", ".join(f"{name}={text}" for name, text in found.items()) or "none of them is set"
    raise InputError(
        f"--array-task: no task of an array job here: {' or '.join(_FIRST)} must be a number "
        f"({said}); submit with sbatch --array or qsub -t, or name a shard with --shard"
    )
