"""Where and by what code this process computes: node, job, versions, and the commit of a clone.

The main process asks git once, and tells all jobs of its run; a stage that is run by hand knows no
commit. A new one causes no shard to be computed again: `shardwise.ALGORITHM` counts for that.
"""

import os
import platform
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, check_output

from shardwise import __version__

# Environment variables: the commit that the main process has found; of the program that started
# this Snakemake, the `shardwise` command, and an open file that gets the last words.
VARIABLE, TYPED, LAST_WORDS = "SHARDWISE_CODE", "SHARDWISE_TYPED", "SHARDWISE_LAST_WORDS"

_INSTALLED = Path(__file__).with_name("project")
# The folder of the Snakefile: the clone, or what a wheel carries of it (setup.py).
PROJECT = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2]
SCRIPTS = PROJECT / "scripts"  # where the entry scripts lie

_PACKAGES = ("numpy", "numba", "cupy", "kvikio", "mpi4py")


def install(cuda: int | None = None) -> str:
    """The command that installs what is missing; cupy for this version of CUDA."""
    return f'pip install "path/to/shardwise{f"[cuda{cuda}]" if cuda else ""}"'


def announce(root: Path = PROJECT) -> None:
    """Tell the jobs of this run the commit of a clone, with ``+`` if its files were changed."""
    line = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    own, found = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}, b""
    with suppress(OSError, SubprocessError):  # no git, or not ours to read
        if (root / ".git").exists():  # a clone of another project may enclose it
            found = check_output(line, cwd=root, env=own, stderr=DEVNULL, timeout=10)
    os.environ[VARIABLE] = found.decode().strip()


def loaded() -> dict[str, str]:
    """The versions of Python, of this project, and of the packages that this process has loaded."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    own = {"shardwise": __version__, "python": platform.python_version()}
    return own | {name: version for name, version in found.items() if version}


def node() -> str:
    """The name of this machine, or of the Slurm node that it stands for."""
    return os.environ.get("SLURMD_NODENAME", socket.gethostname())


def job(environ: Mapping[str, str] = os.environ) -> str | None:
    """The scheduler's job that a process belongs to, such as ``slurm 7``; None outside of one."""
    if "SLURM_JOB_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}"
    if "JOB_ID" in environ and "SGE_ROOT" in environ:  # other programs have a JOB_ID of their own
        task = environ.get("SGE_TASK_ID", "undefined")  # a number in an array job
        return f"grid engine {environ['JOB_ID']}.{task}".removesuffix(".undefined")
    return None
