"""Snakemake in forks of one process that has imported it: the import is most of a small run.

A fork gets the command line, folder, environment and output of a run, and then acts as the command
``snakemake``. Cluster jobs, and runs that a test interrupts, start Snakemake from scratch.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_AT_START = ("HOME", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS")
"""Variables that are read while Python starts or Snakemake is imported."""


def at_start(env: Mapping[str, str]) -> tuple[str | None, ...]:
    """The values on which environments must agree for one process to fork their runs."""
    return tuple(env.get(name) for name in _AT_START)


class WarmSnakemake:
    """The process that forks, a child of this one; it ends when this one does."""

    def __init__(self, env: Mapping[str, str]) -> None:
        # No more of ``env``: a test's cluster, once it ends, kills all that carry its variables.
        own = {name: text for name, text in os.environ.items() if name not in _AT_START}
        own |= {name: env[name] for name in _AT_START if name in env}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=own, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()

    def run(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command line of Snakemake, as `subprocess.run` does with captured output."""
        late = threading.Event()
        with tempfile.TemporaryDirectory() as folder, self._lock:
            outputs = [str(Path(folder, name)) for name in ("output", "errors")]
            self._requests.write(json.dumps([list(words), str(cwd), dict(env), outputs]) + "\n")
            pid = int(self._answers.readline())
            timer = threading.Timer(timeout, lambda: (late.set(), os.kill(pid, signal.SIGKILL)))
            timer.start()
            code = int(self._answers.readline())
            timer.cancel()
            printed = [Path(path).read_text() for path in outputs]
        if late.is_set():
            raise subprocess.TimeoutExpired(list(words), timeout, *printed)
        return subprocess.CompletedProcess(list(words), code, *printed)


def _serve() -> None:
    """Fork for each request, a line of input; return in the fork, which runs `sys.argv`."""
    for request in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(request))
            return
        os.write(1, f"{child}\n".encode())
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
