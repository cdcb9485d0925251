"""The options of all stages, each declared once, and the functions that parse their values."""

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardwise.files.paths import STATISTICS
from shardwise.units import MIB

_ENDS = (
    "Exit codes: 0 done; 2 bad input or config; 3 an integrity check failed; 75 try again (device "
    "busy, out of memory, disk trouble)."
)


def parser(prog: str | None, about: str | None, names: Iterable[str]) -> argparse.ArgumentParser:
    """A parser of some options; it explains the exit codes, unless ``about`` does."""
    made = argparse.ArgumentParser(
        prog=prog,
        description=about,
        epilog=None if about and "Exit codes" in about else _ENDS,
        allow_abbrev=False,  # snakemake's --config is not --configfile
    )
    for name in names:
        made.add_argument(name, **OPTIONS[name])
    return made


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is not 0 or more")
    return number


def mebibytes(text: str) -> int | None:
    """A number of MiB, in bytes; None for 0."""
    return natural(text) * MIB or None


def seconds(text: str) -> float:
    """A time above 0, or ``inf``."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


_RESULTS = "results folder; default: that of the config"
_CONFIG = "config files over config.yaml; later ones override earlier ones"
_OUT = "folder to write; it must not exist yet, or hold an earlier merge, which is replaced"
_WAIT = "seconds to wait for a GPU; default: five minutes in a job, an hour elsewhere"

OPTIONS: dict[str, dict[str, Any]] = {
    # Which results, or which part of them.
    "results": {"nargs": "?", "type": Path, "help": _RESULTS},
    "--results": {"help": _RESULTS},
    "--configfile": {
        "nargs": "+", "action": "extend", "type": Path, "metavar": "FILE", "help": _CONFIG,
    },
    "--plan": {"type": Path, "required": True, "help": "plan.tsv of the results folder"},
    "--shard": {"required": True, "help": "id of the shard, such as 00007"},
    "--key": {"help": "key that the plan must have for this job; snakemake passes it"},
    "--statistics": {
        "nargs": "+", "choices": STATISTICS, "default": ["sum"], "metavar": "NAME",
        "help": f"what to write: {', '.join(STATISTICS)} of all products; default: sum",
    },
    "out": {"type": Path, "metavar": "OUT", "help": _OUT},
    "folders": {"nargs": "+", "metavar": "FOLDER", "help": "results folder of a finished run"},
    # Of the plan.
    "--planned": {"type": Path, "help": "plan.tsv that snakemake made; commit it"},
    "--digest": {"help": "digest that the plan must have; snakemake passes it"},
    "--quote": {"action": "store_true", "help": "write nothing: print what a run would need"},
    "--trial": {"action": "store_true", "help": "as --quote; compute some shards to predict time"},
    "--profile": {"default": "local", "help": "where the trial computes; default: local"},
    # Who computes, and with what.
    "--devices": {
        "type": natural,
        "help": "GPUs of this machine to use at most, 0: all that were granted; for plan --trial: "
        "the devices that the run will have",
    },
    "--mem-mb": {
        "dest": "memory", "type": mebibytes, "metavar": "MIB",
        "help": "host memory for all processes of a machine; default, and with 0: as the plan says",
    },
    "--device-wait": {"type": seconds, "help": _WAIT},
    "--run-time": {"type": seconds, "help": "run time of the job: no shard begins that cannot end"},
    "--round": {"help": "folder of claims; default: all missing shards"},
    "--seat": {"type": natural, "help": "the GPU of this node to look at first"},
    "--parent": {"type": int, "help": "end when the process of this id ends"},
    "--until": {"type": float, "help": "when the scheduler ends this job, in Unix time"},
    "--dispatch": {
        "choices": ("pool", "array", "mpi"), "default": "pool",
        "help": "who computes: workers on this machine (the default), an array job, or MPI ranks",
    },
    "--workers": {"choices": ("device", "node"), "help": "mpi: a rank on each GPU, or each node"},
    "--ranks": {
        "type": natural,
        "help": "MPI ranks; default, and with 0: as the job has tasks or slots, else two for a "
        "sum, and one for each GPU or node to compute",
    },
    "--launcher": {"help": "what starts MPI ranks, such as 'mpiexec -hosts node1,node2'"},
    "--array-tasks": {"type": natural, "help": "array: most tasks to share the shards"},
    "--array-limit": {"type": natural, "help": "array: run at most this many tasks at once"},
    "--scheduler": {"choices": ("slurm", "uge"), "help": "array: what takes it"},
    "--job": {
        "type": shlex.split, "metavar": "WORDS", "default": [],
        "help": "array: what each task asks for, as words for sbatch or qsub",
    },
    "--setup": {"help": "array: a line of bash that each task runs first"},
    # For commands that look at a run, or at a machine.
    "--json": {"action": "store_true", "help": "write JSON, for programs"},
    "--once": {"action": "store_true", "help": "show the state once, as plain text, then end"},
    "--interval": {"type": seconds, "help": "seconds between updates; default: 2, in a pipe 10"},
    "--time-limit": {"type": seconds, "default": 10.0, "help": "seconds per section; default: 10"},
    "--yes": {"action": "store_true", "help": "remove what is listed"},
}  # fmt: skip
