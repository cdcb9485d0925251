"""Snakemake in forks of one process that has imported it: the import is most of a small run.

A fork gets the command line, folder, environment and output of a run, and then acts as the command
``snakemake``. Cluster jobs, and runs that a test interrupts, start Snakemake from scratch.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

_AT_START = ("HOME", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS")
"""Variables that are read while Python starts or Snakemake is imported."""


def at_start(env: Mapping[str, str]) -> tuple[str | None, ...]:
    """The values on which environments must agree for one process to fork their runs."""
    return tuple(env.get(name) for name in _AT_START)


class WarmSnakemake:
    """The process that forks, a child of this one; it ends when this one does."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        # No more of ``env``: a test's cluster, once it ends, kills all that carry its variables.
        own = {name: text for name, text in os.environ.items() if name not in _AT_START}
        own |= {name: env[name] for name in _AT_START if name in env}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=own,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._answers = self._socket.makefile()
        self._lock = threading.Lock()

    def run(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command line of Snakemake, as `subprocess.run` does with captured output."""
        request = json.dumps([list(words), str(cwd), dict(env)]).encode()
        late = threading.Event()
        with TemporaryFile("w+") as output, TemporaryFile("w+") as errors, self._lock:
            outputs = output.fileno(), errors.fileno()
            socket.send_fds(self._socket, [len(request).to_bytes(8, "little")], outputs)
            self._socket.sendall(request)
            pid = int(self._answers.readline())
            timer = threading.Timer(timeout, lambda: (late.set(), os.kill(pid, signal.SIGKILL)))
            timer.start()
            code = int(self._answers.readline())
            timer.cancel()
            for file in (output, errors):
                file.seek(0)
            printed = output.read(), errors.read()
        if late.is_set():
            raise subprocess.TimeoutExpired(list(words), timeout, *printed)
        return subprocess.CompletedProcess(list(words), code, *printed)


def _serve(number: int) -> None:
    """Fork for each request; return in the fork, which runs what `sys.argv` says."""
    requests = socket.socket(fileno=number)
    while True:
        size, outputs, *_ = socket.recv_fds(requests, 8, 2)
        if not size:
            sys.exit()
        request = requests.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
        child = os.fork()
        if not child:
            requests.close()
            _become(outputs, *json.loads(request))
            return
        for descriptor in outputs:
            os.close(descriptor)
        requests.sendall(f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        requests.sendall(f"{code}\n".encode())


def _become(outputs: Sequence[int], words: list[str], folder: str, env: dict[str, str]) -> None:
    """Take over the outputs, words, folder and environment of a run."""
    for descriptor, standard in zip(outputs, (1, 2), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.argv = words


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.executable).parent)  # as for the script that pip has installed
    from snakemake.cli import main

    _serve(int(sys.argv[1]))
    sys.exit(main())
