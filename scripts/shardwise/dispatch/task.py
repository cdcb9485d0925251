"""A task of an array job: which shard of the plan is its own. Standard library only."""

from collections.abc import Mapping

from shardwise.errors import InputError
from shardwise.planfile import Plan

_FIRST = {"SLURM_ARRAY_TASK_ID": 0, "SGE_TASK_ID": 1}
"""The variables that hold the number of a task, and the number of the first one by default."""


def shard(plan: Plan, first: int, environ: Mapping[str, str]) -> str:
    """The shard of this task: the one whose number in the plan, from 0 on, is first + index.

    Raises
    ------
    InputError
        Outside of an array job, or where the plan has no such shard.
    """
    number, ids = first + _index(environ), list(plan.shards)
    if not 0 <= number < len(ids):
        raise InputError(
            f"this task of the array stands for shard number {number}, but {plan.results.plan} "
            f"has 0 to {len(ids) - 1}; submit with --array=0-{len(ids) - 1} under Slurm, "
            f"-t 1-{len(ids)} under Grid Engine"
        )
    return ids[number]


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
