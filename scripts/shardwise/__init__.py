"""Shardwise: a stack of matrices, cut into shards, one GPU job per shard, one sum.

`run` runs the workflow, `plan` says what it would do, `open` reads the results of a run; the
rest of the package is internal.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before `def plan`: only the first import of the room `plan` binds that name here.
from shardwise import plan as _room  # noqa: F401

if TYPE_CHECKING:
    import pandas as pd

    from shardwise.command.from_python import Config
    from shardwise.observe.finished_run import FinishedRun

__all__ = ["open", "plan", "run"]
__version__ = "0.1.0"

# The version of each stage's algorithm. Raise a number by hand when the bytes that the stage
# writes change: every finished shard is then computed again. A changed comment does not count.
ALGORITHM = {"synthesize": 2, "shard": 4, "multiply": 8, "reduce": 8}


def open(folder: str | Path) -> "FinishedRun":
    """Open a results folder for reading: its sum, statistics, products and ledger.

    InputError if it holds no plan of a run.
    """
    from shardwise.observe.finished_run import FinishedRun  # every job imports this file

    return FinishedRun(folder)


def run(config: "Config" = None, profile: str | Path = "local", **keys: Any) -> "FinishedRun":
    """Run the workflow in this folder, as the command ``shardwise run`` does, and open its results.

    ``config`` is a YAML file, whose keys override ``config.yaml`` of this folder, as with
    ``--configfile``; or a dict of keys, or None with ``keys``: then ``config.yaml`` is not read.
    ``keys`` override those of ``config``. ``profile`` says where jobs run: a folder, or its name in
    ``profiles/``.

    ShardwiseError if the run failed, with its last messages; the class tells the exit code of the
    command: InputError 2, TryAgain 75, ShardwiseError itself 1, as when jobs have failed.
    KeyboardInterrupt after Ctrl-C, once the run has cancelled its jobs.
    """
    from shardwise.command import from_python  # every job imports this file

    settings = from_python.settings_of(config, keys)
    from_python.follow(settings, str(profile))
    return open(settings.results)


def plan(config: "Config" = None, **keys: Any) -> "pd.DataFrame":
    """The plan that :func:`run` would follow, a row per shard, sizes in bytes; nothing is started.

    InputError if the config, the input or the results folder is bad.
    """
    import pandas as pd  # every job imports this file

    from shardwise.command import from_python
    from shardwise.files.paths import CACHE
    from shardwise.plan import planner

    made = planner.make(from_python.settings_of(config, keys), CACHE if CACHE.is_dir() else None)
    planner.check_folder(made)
    return pd.DataFrame(map(vars, made.shards.values()))
