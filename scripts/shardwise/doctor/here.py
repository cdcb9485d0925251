"""What this machine has apart from GPUs: packages, MPI, schedulers, and the results' disk."""

import os
import platform
import shlex
import shutil
import socket
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from shardwise import host
from shardwise.devices.choose import SCHEDULER_CLIENTS
from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.errors import FINDERS, some
from shardwise.mpi import launch
from shardwise.units import human_bytes

# Packages with compiled code: a copy for another Python does not load.
_PACKAGES = "numpy, numba, pandas, mpi4py, xxhash, msgspec, yaml, matplotlib"
_OF_THIS_MACHINE = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"}

_SCHEDULERS = {  # a command that exists with it, and one that lists what a profile may name
    "slurm": ("sbatch", "sinfo --noheader '--format=%P %G'", "partitions and GPUs"),
    "grid engine": ("qconf", "qconf -spl", "parallel environments"),
}


def packages(ask: Call, environ: Any = os.environ) -> Findings:
    """The version of Python, and whether all that the jobs import loads."""
    yield Finding("ok", "python", f"{platform.python_version()}, {sys.executable}")
    strays = ", ".join(name for name in FINDERS if environ.get(name))
    reply = ask([sys.executable, "-P", "-c", f"import {_PACKAGES}"])
    found = "all that jobs import" if reply.code == 0 else f"a package does not load: {reply.last}"
    found += f"; packages in {strays} come first" * bool(strays)
    do = f"unset {strays}" if strays else host.install()
    bad = "later" if reply.code is None else "fault"
    yield judge(reply.code == 0, "loading", found, "packages for this Python", do, bad)


def ranks(ask: Call, launcher: str) -> Findings:
    """The launcher of the ranks of a reduce, and a hello of two."""
    yield Finding("ok", "launcher", shlex.join(launch.build_command(2, launcher)))
    reply = ask([sys.executable, "-P", __file__, launcher])
    said = [line.split(maxsplit=2) for line in reply.out.splitlines() if line[:6] == "hello "]
    found = f"{len(said)} ranks have met: {reply.last}"
    if good := reply.code == 0 and len(said) == 2:
        found = f"2 ranks in one world on {', '.join(sorted({s[1] for s in said}))}: {said[0][2]}"
    do = "name a launcher of mpi4py's MPI: --launcher, 'mpi' in the profile; or set MPI4PY_LIBMPI"
    bad = "later" if reply.code is None else "fault"
    yield judge(good, "hello", found, "2 ranks in one world", do, bad)


def schedulers(ask: Call, name: str, which: Call = shutil.which) -> Findings:
    """Whether a scheduler answers, and what it has."""
    client, question, what = _SCHEDULERS[name]
    local = "jobs on this machine (profiles/local) need none"
    if which(client) is None:
        yield Finding("note", name, f"none here: {client} is not on PATH", local)
        return
    reply = ask(shlex.split(question))
    found = f"{what}: {some(reply.out.splitlines())}" if reply.code == 0 else reply.last
    do = "try again before you submit, from a login node; if it persists, ask your site"
    yield judge(reply.code == 0, name, found, local, do)


def disk(ask: Call, results: Path, which: Call = shutil.which) -> Findings:
    """The disk that the results folder is on, or will be; nothing is written there."""
    path, name_another = results.absolute(), "name another: key results of the config"
    folder = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        found, allowed = f"{folder} is not a writable folder", "one that jobs may write to"
        yield Finding("fault", "folder", found, allowed, name_another)
        return
    line = ["findmnt", "--raw", "--noheadings", "--output", "FSTYPE,TARGET", "--target"]
    reply = ask([*line, str(folder)])
    if reply.code == 0:  # else nothing is known, as in a chroot
        kind, mounted = reply.last.split(" ", 1)
        seen = kind not in _OF_THIS_MACHINE or not any(map(which, SCHEDULER_CLIENTS))
        found = f"{results} is on {kind}, mounted at {mounted}"
        allowed = "a disk that all nodes see, unless all jobs run on this machine"
        yield judge(seen, "file system", found, allowed, name_another)
    free = human_bytes(shutil.disk_usage(folder).free)
    yield Finding("ok", "space", f"{free} free; a dry run says what the results need")


if __name__ == "__main__":  # as one of the ranks that `ranks` starts
    from shardwise.mpi.together import mpi_version  # here: the doctor starts without NumPy

    launch.start_ranks(Namespace(ranks=2, launcher=sys.argv[1]))
    line = f"hello {socket.gethostname()} {mpi_version()}\n"
    os.write(1, line.encode())  # in one write, so lines of ranks do not mix
