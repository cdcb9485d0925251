"""How many MPI ranks can be of use: for the work that there is, and where they would run.

A number far beyond both is a slip of the pen, which a launcher would try to start all the same. So
the limits are generous: some ranks too many only wait. Standard library only.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shardwise.errors import InputError
from shardwise.units import count

ALWAYS = 64
"""So many ranks are allowed whatever there is to do: a profile suits large runs, too."""

_CROWD = 8
"""So many ranks may share a core, or a place that a scheduler grants."""

_LOCAL = ("mpiexec", "mpirun", "mpiexec.hydra", "orterun", "prterun")
_HOSTS = ("host", "hosts", "H", "f", "hostfile", "machinefile", "configfile", "app")
_HOST_FILES = (
    "HYDRA_HOST_FILE", "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"
)  # fmt: skip


class Limit(NamedTuple):
    """The most ranks that make sense, and the figure that this follows from."""

    most: int
    figure: str


def refuse_more(ranks: int, named: str, *limits: Limit | None) -> None:
    """Refuse more ranks than can be of use; ``named`` is the key or option that asks for them."""
    known = [limit for limit in limits if limit]
    most = min((limit.most for limit in known), default=ranks)
    if ranks > most:
        figures = ", ".join(limit.figure for limit in known)
        raise InputError(
            f"{named}: {ranks} ranks are more than can be of use ({figures}); ask for {most} or "
            "fewer"
        )


def limit_by_work(pieces: int, figure: str) -> Limit:
    """The limit where the work falls into so many pieces, each of which one rank does."""
    return Limit(max(ALWAYS, pieces), figure)


def limit_by_places(places: int, figure: str) -> Limit:
    """The limit where there are so many cores, or tasks that a scheduler grants."""
    return Limit(_CROWD * max(2, places), figure)


def limit_by_machine(launcher: str | None, environ: Mapping[str, str] = os.environ) -> Limit | None:
    """The limit of what this process may use; None where the ranks may run elsewhere, too."""
    if "SLURM_JOB_ID" in environ:
        nodes = _number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
        tasks, cpus = _number(environ, "SLURM_NTASKS"), _number(environ, "SLURM_CPUS_ON_NODE")
        if not nodes or not (tasks or cpus):
            return None
        places = max(tasks, nodes * cpus)
        return limit_by_places(places, f"this Slurm job has {places} tasks or CPUs")
    if slots := _number(environ, "NSLOTS"):
        return limit_by_places(slots, f"this Grid Engine job has {count(slots, 'slot')}")
    if _elsewhere(launcher, environ):
        return None
    cores = len(os.sched_getaffinity(0))
    return limit_by_places(cores, f"this process may use {count(cores, 'core')}")


def _number(environ: Mapping[str, str], *names: str) -> int:
    """The first of some variables that holds a number; 0 where none does."""
    return next((int(environ[n]) for n in names if environ.get(n, "").isdecimal()), 0)


def _elsewhere(launcher: str | None, environ: Mapping[str, str]) -> bool:
    """Whether a launcher may start ranks on other machines: it is none we know, or names hosts."""
    try:
        words = shlex.split(launcher or "auto")
    except ValueError:
        return True  # which `launch.build_command` refuses
    if words in ([], ["auto"]):
        words = ["mpiexec"]
    options = {word.lstrip("-").partition("=")[0] for word in words[1:] if word.startswith("-")}
    told = not options.isdisjoint(_HOSTS) or not environ.keys().isdisjoint(_HOST_FILES)
    return told or Path(words[0]).name not in _LOCAL
