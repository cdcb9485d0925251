"""The schedulers by the names that recipes and journals give them."""

from shardwise.dispatch.schedulers.common import Scheduler
from shardwise.dispatch.schedulers.grid_engine import GridEngine
from shardwise.dispatch.schedulers.slurm import Slurm

SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "uge": GridEngine()}
