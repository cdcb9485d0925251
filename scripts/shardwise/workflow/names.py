"""Refuses names that would not reach a scheduler's job unchanged, before any job starts.

Snakemake's executors write a job's command for a shell with names quoted as Python quotes them; the
Slurm plugin puts that into double quotes once more, for the shell of this machine. Slurm also
expands ``%j`` and the like. We cannot change any of this, so one rule holds for every scheduler.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, short
from shardwise.files.paths import Results

_ODD = re.compile(r"""["'$`\\]|%[0-9]*[A-Za-z%]|^-""")


def refuse_odd(workflow: Any, config: Mapping[str, Any], results: Results) -> None:
    """Raise InputError if a name of this run could not be submitted as it is."""
    places = {
        "the working directory": os.getcwd(), "the Snakefile": workflow.main_snakefile,
        "the config file": workflow.overwrite_configfiles, **config, "results": results.root,
    }  # fmt: skip
    for what, value in places.items():
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(name, (str, Path)) and (odd := find_odd(str(name))):
                raise InputError(
                    f"{what} {short(str(name))} holds {odd!r}, but schedulers pass names to a "
                    "shell: no name may begin with a dash, or hold a quote, $, `, \\, % before a "
                    "letter, or a character that cannot be printed; rename it, or run with "
                    "profiles/local"
                )
    if shlex.quote(sys.executable) != sys.executable:
        raise InputError(
            f"schedulers would not quote {short(sys.executable)}; move the environment"
        )


def find_odd(name: str) -> str:
    """The part of a name that a shell or a scheduler would not take literally; empty if none."""
    odd = _ODD.search(name)
    return odd[0] if odd else next((c for c in name if not c.isprintable()), "")
