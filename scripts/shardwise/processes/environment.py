"""Guard a run against variables of the surrounding shell that are not meant for it.

Variables that filter or format what Slurm answers, or that a rank of an earlier MPI job has left,
are removed. A folder of ``PYTHONPATH`` whose copy of a package does not load is only named: the
user has to remove it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from importlib.machinery import PathFinder
from itertools import product

from shardwise.errors import InputError

RANKS_STARTED = "SHARDWISE_RANKS"
"""The number of ranks, in those that we started: whatever else they see, they start none."""

_STRAY = re.compile(
    # These filter or format what Slurm answers, or send it elsewhere.
    r"(SQUEUE|SCANCEL|SACCT)_.*|SLURM_TIME_FORMAT|(SLURM|SBATCH)_CLUSTERS"
    # These tell a rank about itself, and would mislead the ranks that it starts.
    r"|PMI_(RANK|SIZE|FD|ID|PORT|JOBID|SPAWNED)|PMIX_(RANK|NAMESPACE|SERVER_.*)"
    rf"|(OMPI|MV2)_COMM_WORLD_.*|SLURM_STEP_NUM_TASKS|{RANKS_STARTED}"
)


PACKAGES = ("numpy", "numba", "pandas", "mpi4py", "xxhash", "msgspec", "yaml", "matplotlib")
"""Packages with compiled code: a copy for another Python does not load."""


def without_stray(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment without variables that mislead Slurm's commands, or make a process a rank."""
    return {name: text for name, text in environ.items() if not _STRAY.fullmatch(name)}


def clear_stray(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove these variables from this process, and so from all processes that it starts."""
    for name in environ.keys() - without_stray(environ).keys():
        del environ[name]


def refuse_other_packages(environ: Mapping[str, str] = os.environ) -> None:
    """Raise InputError if ``PYTHONPATH`` has a copy of a package that does not load here.

    A copy that loads may be intended: environment modules of clusters provide packages that way.
    """
    folders = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    for folder, name in product(folders, PACKAGES):
        spec = PathFinder.find_spec(name, [folder])
        if spec is None or spec.loader is None:  # a folder without code hides no package
            continue
        line = [sys.executable, "-P", "-c", f"import {name}"]
        done = subprocess.run(line, capture_output=True, text=True, env=environ, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InputError(
                f"PYTHONPATH names {folder}, whose {name} does not load here: {reason}; unset "
                "PYTHONPATH, or take that folder out of it"
            )
