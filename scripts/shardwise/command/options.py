"""The options of all commands, each declared once, and the functions that parse their values."""

import argparse
import inspect
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.files.paths import STATISTICS
from shardwise.units import MIB

_ENDS = (
    "Exit codes: 0 done; 2 bad input or config; 3 an integrity check failed; 75 try again (device "
    "busy, out of memory, disk trouble)."
)


def parse(work: Callable[..., Any], names: str, typed: str | None) -> argparse.Namespace:
    """The options of a command on the command line; ``typed`` names it, None for a script.

    The name ``...`` stands for all other words: Snakemake parses these ``others``.
    """
    about, words = inspect.getdoc(work) or "", sys.argv[2 if typed else 1 :]
    made = argparse.ArgumentParser(
        typed, description=about, epilog=None if "Exit codes" in about else _ENDS,
        allow_abbrev=False,  # snakemake's --config is not --configfile
    )  # fmt: skip
    for name in names.replace("...", "").split():
        made.add_argument(name, **OPTIONS[name])
    if "..." not in names:
        return made.parse_args(words)
    found, others = made.parse_known_args(words)
    return argparse.Namespace(**vars(found), others=others)


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0 or more")
    return int(text)


def mebibytes(text: str) -> int | None:
    """A number of MiB, in bytes; None for 0."""
    return natural(text) * MIB or None


def seconds(text: str) -> float:
    """A time above 0, or ``inf``."""
    with suppress(ValueError):
        if (number := float(text)) > 0:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, above 0")


_RESULTS = "results folder; default: that of the config"
_CONFIG = "config files over config.yaml; later ones override earlier ones"
_PROFILE = "where jobs run: a folder, or its name in profiles/; default: the only one, or local"
_DEVICES = "GPUs to use at most, 0: all that were granted; plan --trial: those of the run (1)"
_MEMORY = "MiB of host memory for all processes of this machine; default: as planned"
_DISPATCH = "who computes: workers on this machine (the default), an array job, or MPI ranks"
_RANKS = "MPI ranks; 0, the default: the slots of the job, else 2, or one for each GPU or node"
_WAIT = "seconds to wait for a GPU; default: 300 in a job of a scheduler, else 3600"

OPTIONS: dict[str, dict[str, Any]] = {
    # Which results, or which part of them.
    "results": {"nargs": "?", "type": Path, "help": _RESULTS},
    "--results": {"help": _RESULTS},
    "--configfile": {"nargs": "+", "action": "extend", "type": Path, "help": _CONFIG},
    "--plan": {"type": Path, "required": True, "help": "plan.tsv of the results folder"},
    "--shard": {"required": True, "help": "id of the shard, such as 00007"},
    "--key": {"help": "key that the plan must have for this job; snakemake passes it"},
    "--statistics": {"nargs": "+", "choices": STATISTICS, "default": ["sum"],
                     "help": "what to write of all products; default: sum"},
    "out": {"type": Path, "metavar": "OUT",
            "help": "folder to write: new, or of an earlier merge, which is replaced"},
    "folders": {"nargs": "+", "metavar": "FOLDER", "help": "results folder of a finished run"},
    # Of the plan.
    "--planned": {"type": Path, "help": "plan.tsv that snakemake made; commit it"},
    "--digest": {"help": "digest that the plan must have; snakemake passes it"},
    "--quote": {"action": "store_true", "help": "write nothing: print what a run would need"},
    "--trial": {"action": "store_true", "help": "as --quote; compute some shards to predict time"},
    "--profile": {"help": _PROFILE},
    "--job": {"metavar": "WORDS", "type": shlex.split,
              "help": "options of sbatch or qsub for the job, or each task: --job='--time=7-0'"},
    # Who computes, and with what.
    "--devices": {"type": natural, "help": _DEVICES},
    "--mem-mb": {"dest": "memory", "type": mebibytes, "help": _MEMORY},
    "--device-wait": {"type": seconds, "help": _WAIT},
    "--run-time": {"type": seconds, "help": "seconds that the job has; no shard begins too late"},
    "--round": {"help": "folder of claims; default: all missing shards"},
    "--seat": {"type": natural, "help": "the GPU of this node to look at first"},
    "--parent": {"type": int, "help": "end when the process of this id ends"},
    "--until": {"type": float, "help": "when the scheduler ends this job, in Unix time"},
    "--dispatch": {"choices": ("pool", "array", "mpi"), "default": "pool", "help": _DISPATCH},
    "--workers": {"choices": ("device", "node"), "help": "mpi: a rank on each GPU, or each node"},
    "--ranks": {"type": natural, "help": _RANKS},
    "--launcher": {"help": "what starts MPI ranks, such as 'mpiexec -hosts node1,node2'"},
    "--array-tasks": {"type": natural, "help": "array: most tasks to share the shards"},
    "--array-limit": {"type": natural, "help": "array: run at most this many tasks at once"},
    "--scheduler": {"choices": ("slurm", "uge"), "help": "array: what takes it"},
    "--setup": {"help": "array: a line of bash that each task runs first"},
    # For commands that look at a run, or at a machine.
    "--json": {"action": "store_true", "help": "write JSON, for programs"},
    "--once": {"action": "store_true", "help": "show the state once, as plain text, then end"},
    "--interval": {"type": seconds, "help": "seconds between updates; default: 2, in a pipe 10"},
    "--time-limit": {"type": seconds, "default": 10.0, "help": "seconds per section; default: 10"},
    "--yes": {"action": "store_true", "help": "remove what is listed"},
}  # fmt: skip
