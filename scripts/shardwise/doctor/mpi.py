"""Which launcher starts the ranks of a reduce, and whether two meet; as a program, these two."""

import os
import shlex
import socket
import sys
from argparse import Namespace

from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.mpi import launch


def check(ask: Call, launcher: str) -> Findings:
    """The launcher, and a hello of two ranks."""
    yield Finding("ok", "launcher", shlex.join(launch.build_command(2, launcher)))
    reply = ask([sys.executable, "-P", __file__, launcher])
    said = [line.split(maxsplit=2) for line in reply.out.splitlines() if line[:6] == "hello "]
    found = f"{len(said)} ranks have met: {reply.last}"
    if good := reply.code == 0 and len(said) == 2:
        found = f"2 ranks in one world on {', '.join(sorted({s[1] for s in said}))}: {said[0][2]}"
    do = "name a launcher of mpi4py's MPI: --launcher, 'mpi' in the profile; or set MPI4PY_LIBMPI"
    bad = "later" if reply.code is None else "fault"
    yield judge(good, "hello", found, "2 ranks in one world", do, bad)


if __name__ == "__main__":
    from shardwise.mpi.together import mpi_version  # here: the doctor starts without NumPy

    launch.start_ranks(Namespace(ranks=2, launcher=sys.argv[1]))
    line = f"hello {socket.gethostname()} {mpi_version()}\n"
    os.write(1, line.encode())  # in one write, so lines of ranks do not mix
