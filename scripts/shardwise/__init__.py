"""Shardwise: a stack of matrices, cut into shards, one GPU job per shard, one sum.

`open` reads the results of a run; nothing else here is for other programs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.observe.finished_run import FinishedRun

__all__ = ["open"]
__version__ = "0.1.0"

# The version of each stage's algorithm. Raise a number by hand when the bytes that the stage
# writes change: every finished shard is then computed again. A changed comment raises nothing.
ALGORITHM = {"synthesize": 2, "shard": 4, "multiply": 7, "reduce": 8}


def open(folder: str | Path) -> "FinishedRun":
    """Open a results folder for reading: its sum, statistics, products and ledger.

    Raises
    ------
    InputError
        Where the folder holds no plan of a run.
    """
    from shardwise.observe.finished_run import FinishedRun  # every job imports this file

    return FinishedRun(folder)
