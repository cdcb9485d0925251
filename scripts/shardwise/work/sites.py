"""The schedulers that there are, by name, and the one that this process is a job of."""

import os

from shardwise import host
from shardwise.work.grid_engine import GridEngine
from shardwise.work.schedulers import Scheduler
from shardwise.work.slurm import Slurm

ALL: dict[str, Scheduler] = {"slurm": Slurm(), "uge": GridEngine()}


def end_of_this_job(asked: float | None) -> float | None:
    """When the job that this process belongs to is ended; None outside of a scheduler."""
    name = {"slurm": "slurm", "grid": "uge"}.get((host.job(os.environ) or "").partition(" ")[0])
    return ALL[name].end_of_job(asked) if name else None
