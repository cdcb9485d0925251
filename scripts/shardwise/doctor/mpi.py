"""Which launcher starts the ranks of a reduce, and whether two meet; as a program, these two."""

import os
import shlex
import socket
import sys
from argparse import Namespace

from shardwise import host
from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.mpi import launch


def check(ask: Call, launcher: str, ranks: int = 2) -> Findings:
    """The launcher, the memory that the config's ``ranks`` share, and a hello of two ranks."""
    yield Finding("ok", "launcher", shlex.join(launch.build_command(2, launcher)))
    host.refuse_small_shared_memory(ranks, "reduce.ranks")
    reply = ask([sys.executable, "-P", __file__, launcher])
    said = [line.split(maxsplit=3) for line in reply.out.splitlines() if line[:6] == "hello "]
    worlds = " and ".join(line[1] for line in said)
    found = f"worlds of {worlds or 'no'} ranks: {reply.last}"
    if good := reply.code == 0 and worlds == "2 and 2":
        found = f"2 ranks in one world on {', '.join(sorted({s[2] for s in said}))}: {said[0][3]}"
    do = "name a launcher of mpi4py's MPI: --launcher, 'mpi' in the profile; or set MPI4PY_LIBMPI"
    bad = "later" if reply.code is None else "fault"
    yield judge(good, "hello", found, "2 ranks in one world", do, bad)


if __name__ == "__main__":
    mpi = launch.start_ranks(Namespace(ranks=2, launcher=sys.argv[1]))
    version = " ".join(mpi.Get_library_version().splitlines()[0].strip("\0").split())
    line = f"hello {mpi.COMM_WORLD.allreduce(1)} {socket.gethostname()} {version}\n"
    os.write(1, line.encode())  # in one write, so lines of ranks do not mix
