"""Start MPI ranks for the user: with which launcher, command line and environment.

mpi4py is imported only in a process that is a rank: the import starts MPI, which makes it one.
"""

import importlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.devices import choose
from shardwise.errors import InputError, TryAgain, log
from shardwise.processes import contain
from shardwise.processes.contain import RANKS_STARTED, without_stray

# For ranks, as JSON: the host name of the first node, and the variables that grant its GPUs.
_FIRST_NODE = "SHARDWISE_FIRST_NODE"
# By these each launcher tells its processes how many ranks there are.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an MPI launcher started this process as one of several ranks.

    A world of one rank does not count: any process in an interactive shell of srun looks like it.
    """
    size = _largest(environ, *_SIZES)
    named = not size and any(name in environ for name in ("PMI_RANK", "PMI_ID", "PMIX_RANK"))
    return RANKS_STARTED in environ or size > 1 or named


def expected_ranks(environ: Mapping[str, str] = os.environ, otherwise: int = 2) -> int:
    """How many ranks were started or granted, or ``otherwise``; 0 if only MPI knows."""
    size = _largest(environ, RANKS_STARTED) or _largest(environ, *_SIZES)
    granted = 0 if is_rank(environ) else _largest(environ, "SLURM_NTASKS", "NSLOTS") or otherwise
    return size or granted


def _largest(environ: Mapping[str, str], *names: str) -> int:
    return max((int(environ[name]) for name in names if environ.get(name)), default=0)


def build_command(
    ranks: int, launcher: str | None = None, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """The words that start ranks of a program: of a launcher with options, or mpi4py's mpiexec."""
    try:
        name, *words = shlex.split(launcher or "") or ["mpiexec"]
    except ValueError as error:
        raise InputError(f"launcher {launcher!r}: {error}; write it as in a shell") from None
    # One next to the MPI that MPI4PY_LIBMPI names, else next to this Python; or on PATH.
    library = Path(environ.get("MPI4PY_LIBMPI", sys.executable))
    own = [str(library.parents[1] / "bin")] if library.is_absolute() else []
    folders = os.pathsep.join([*own, environ.get("PATH", os.defpath)])
    if (program := shutil.which(name, path=folders)) is None:
        raise InputError(
            f"no MPI launcher: {name} is neither next to {library} nor on PATH; name yours "
            "with --launcher, or in the line 'mpi' of the profile"
        )
    return [program, *words, "-n", str(ranks)]


def _slurm_nodes(ranks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that tell mpiexec the nodes of this Slurm job, and equally many ranks on each.

    Snakemake's job step removes those that Slurm sets; all ranks would be on one node.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None or "SLURM_JOB_NODELIST" in environ:
        return {}
    line = ["squeue", "--noheader", f"--jobs={job}", "--format=%N %D"]
    try:
        nodes, count = subprocess.check_output(line, env=without_stray(), text=True).split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise TryAgain(f"squeue does not list the nodes of job {job}: {error}") from None
    return {
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), nodes),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), count),
        "SLURM_TASKS_PER_NODE": f"{-(-ranks // int(count))}(x{count})",
    }


def _without_grant(environ: dict[str, str]) -> dict[str, str]:
    """The environment for mpiexec, in a job of several nodes without the first node's GPUs.

    MPICH's mpiexec gives its own environment to all ranks. If it lacks a variable, ranks keep the
    value that the scheduler sets on their node: Slurm by srun, Grid Engine by qrsh. But qrsh does
    not start the ranks on the first node: see `_own_grant`.
    """
    if environ.get("SLURM_JOB_NUM_NODES", environ.get("NHOSTS", "1")) == "1":
        return environ
    first = choose.variables(environ)
    others = {name: value for name, value in environ.items() if name not in first}
    return {**others, _FIRST_NODE: json.dumps([socket.gethostname(), first])}


def _own_grant(environ: MutableMapping[str, str]) -> None:
    """In a rank on the first node, restore what `_without_grant` removed, unless it is set."""
    host, first = json.loads(environ.pop(_FIRST_NODE, "[null, {}]"))
    if host == socket.gethostname():
        environ.update({name: value for name, value in first.items() if name not in environ})


def call(ranks: int, launcher: str | None, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command that runs a script of ours as ``ranks`` ranks, and its environment."""
    words = build_command(ranks, launcher)
    # By default srun lets the other ranks wait for one that has failed.
    variables = {"SLURM_KILL_BAD_EXIT": "1", **without_stray(), RANKS_STARTED: str(ranks)}
    if Path(words[0]).name != "srun":
        variables = _without_grant({**variables, **_slurm_nodes(ranks, os.environ)})
        if variables.get("SLURM_JOB_NUM_NODES") == "1":
            # Else MPICH's mpiexec uses srun, which waits for the CPUs that this job step holds.
            variables.setdefault("HYDRA_LAUNCHER", "fork")
    # mpi4py's runner ends all ranks if one ends with an error. It replaces sys.path[0], which with
    # -P is needed: so another entry is put before it.
    runner = "import sys; sys.path.insert(0, sys.prefix); from mpi4py.run import main; main()"
    return [*words, sys.executable, "-P", "-c", runner, *argv], variables


def start_ranks(options: Namespace) -> Any:
    """The MPI module, in a rank; a process that is no rank yet is replaced by the launcher.

    ``options`` has ``launcher`` and ``ranks``. Raises InputError if MPI has another number of
    ranks: a launcher of another MPI starts worlds of one rank each, and reports no error.
    """
    options.ranks = options.ranks or expected_ranks()
    if is_rank():
        # If a job over several hosts is deleted, the launcher's helper on another host may end
        # without its ranks: they would work on, unknown to the scheduler.
        contain.end_with_parent()
        _own_grant(os.environ)
    elif options.ranks > 1 or options.launcher not in (None, "mpiexec"):
        words, variables = call(options.ranks, options.launcher, sys.argv)
        log.info("starting %d ranks: %s", options.ranks, shlex.join(words))
        sys.stdout.flush()
        os.execve(words[0], words, variables)
    # MPICH would read a large message from the other rank's memory, and fail where the seccomp of a
    # container refuses that. A copy through shared memory works everywhere.
    os.environ.setdefault("MPIR_CVAR_CH4_CMA_ENABLE", "0")
    # MPICH 5.0 sends its peers 4 KiB of its stack in one line. Slurm's pmi2 takes 1,024 bytes of a
    # line: enough only if most of that stack is still 0, as in a new thread.
    with ThreadPoolExecutor(1) as pool:
        mpi = pool.submit(importlib.import_module, "mpi4py.MPI").result()
    # MPICH unlinks its shared memory only at a regular end, which a killed rank has not. Once all
    # ranks of this node have mapped it, nobody needs its name: it goes with the last rank.
    mpi.COMM_WORLD.Barrier()
    maps = Path("/proc/self/maps").read_text(errors="replace")
    for name in set(re.findall(r"/\S*mpich_shm_\S+$", maps, re.MULTILINE)):
        with suppress(OSError):  # another rank was first
            os.unlink(name)
    if options.ranks not in (0, size := mpi.COMM_WORLD.size):
        raise InputError(
            f"asked for {options.ranks} ranks, but MPI has {size}: the launcher does not match the "
            "MPI that mpi4py loads; see the line 'mpi' of the profile"
        )
    return mpi
