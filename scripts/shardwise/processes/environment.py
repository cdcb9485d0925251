"""The environment of programs, without variables of the surrounding shell not meant for them."""

import os
import re
from collections.abc import Mapping, MutableMapping

RANKS_STARTED = "SHARDWISE_RANKS"
"""The number of ranks, in those that we started: whatever else they see, they start none."""

_STRAY = re.compile(
    # These filter or format what Slurm answers, or send it elsewhere.
    r"(SQUEUE|SCANCEL|SACCT)_.*|SLURM_TIME_FORMAT|(SLURM|SBATCH)_CLUSTERS"
    # These tell a rank about itself, and would mislead the ranks that it starts.
    r"|PMI_(RANK|SIZE|FD|ID|PORT|JOBID|SPAWNED)|PMIX_(RANK|NAMESPACE|SERVER_.*)"
    rf"|(OMPI|MV2)_COMM_WORLD_.*|SLURM_STEP_NUM_TASKS|{RANKS_STARTED}"
)


def without_stray(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment without variables that mislead Slurm's commands, or make a process a rank."""
    return {name: text for name, text in environ.items() if not _STRAY.fullmatch(name)}


def clear_stray(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove these variables from this process, and so from all processes that it starts."""
    for name in environ.keys() - without_stray(environ).keys():
        del environ[name]
