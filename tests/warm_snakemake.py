"""Snakemake in forks of one process that has imported it: the import is most of a small run.

A fork gets the command line, folder, environment and output of a run, and then acts as the command
``snakemake``. Cluster jobs, and runs that a test interrupts, start Snakemake from scratch.
"""

import json
import os
import sys
import tempfile
from pathlib import Path


def _serve() -> None:
    """Fork for each request, a line of input; return in the fork, which runs `sys.argv`."""
    for request in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(request))
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, f"{code}\n".encode())
    sys.exit()


def _become(words: list[str], folder: str, env: dict[str, str], outputs: list[str]) -> None:
    """Take over the words, folder, environment and outputs of a run, which has no input."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for path, standard in zip(outputs, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), standard)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.argv = words


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.executable).parent)  # as for the script that pip has installed
    from snakemake.cli import main

    _serve()
    sys.exit(main())
