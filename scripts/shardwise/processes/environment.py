"""What the shell around a run may hold that is not meant for it.

Variables that filter or format what Slurm answers, or that a rank of an earlier MPI job has left,
are taken away.
"""

import os
import re
from collections.abc import Mapping, MutableMapping

_STRAY = re.compile(
    r"(SQUEUE|SCANCEL|SACCT)_.*|SLURM_TIME_FORMAT|SLURM_CLUSTERS|SLURM_STEP_NUM_TASKS"
    r"|PMI_(RANK|SIZE|FD|ID|PORT|JOBID|SPAWNED)|PMIX_(RANK|NAMESPACE|SERVER_.*)"
    r"|(OMPI|MV2)_COMM_WORLD_.*"
)


def without_stray(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment without what would mislead Slurm's commands, or make a rank of a process."""
    return {name: text for name, text in environ.items() if not _STRAY.fullmatch(name)}


def clear_stray(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take that away from this process, and from all that it starts."""
    for name in environ.keys() - without_stray(environ).keys():
        del environ[name]
