"""Which launcher would start the ranks of the reduce, and whether two of them meet.

python -m shardwise.doctor.mpi RANKS LAUNCHER starts the ranks, or is one of them.
"""

import json
import os
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Iterator

from shardwise.doctor import findings as base
from shardwise.doctor.findings import Deadline, Finding, Reply, fault, ok
from shardwise.errors import ShardwiseError
from shardwise.mpi import launch

RANKS = 2
_NAME_YOURS = "name your site's launcher with --launcher, and in the line 'mpi' of the profile"


def findings(deadline: Deadline, launcher: str = "mpiexec") -> Iterator[Finding]:
    """The launcher, and a real hello of two ranks."""
    try:
        words = launch.build_command(RANKS, launcher)
    except ShardwiseError as error:
        yield base.refused("launcher", error, _NAME_YOURS)
        return
    yield ok("launcher", shlex.join(words), words=words)
    line = [sys.executable, "-P", "-m", "shardwise.doctor.mpi", str(RANKS), launcher]
    answer = base.ask(line, deadline, base.environment())
    yield _hello(answer, words[0], deadline)


def _hello(answer: Reply, launcher: str, deadline: Deadline) -> Finding:
    """What the ranks said, judged."""
    said = sorted((line for line in answer.said() if "size" in line), key=lambda rank: rank["rank"])
    worlds = [rank["size"] for rank in said]
    if answer.code is None:
        text = f"{RANKS} ranks did not end within {deadline.limit:.0f} s ({len(said)} said hello)"
        return fault("hello", text, _NAME_YOURS, code=75, ranks=said)
    if answer.code or not said:
        return fault("hello", f"no rank could say hello: {answer.reason}", _NAME_YOURS, ranks=said)
    mpi, hosts = said[0]["mpi"], sorted({rank["host"] for rank in said})
    if sorted(worlds) != [RANKS] * RANKS or any(rank["sum"] != RANKS for rank in said):
        text = (
            f"{launcher} started {len(said)} processes in worlds of "
            f"{' and '.join(map(str, sorted(worlds)))}, not {RANKS} ranks in one world: it belongs "
            f"to another MPI than the one that mpi4py loads ({mpi})"
        )
        cure = "name the launcher of that MPI with --launcher, or set MPI4PY_LIBMPI to the other's"
        return fault("hello", text, cure, ranks=said)
    text = f"{RANKS} ranks in one world on {', '.join(hosts)}: {mpi}"
    return ok("hello", text, ranks=said)


def say_hello(ranks: int, launcher: str) -> None:
    """Start the ranks, or be one: tell the size of the world in a line of JSON, after a sum."""
    try:
        mpi = launch.start_ranks(Namespace(ranks=ranks, launcher=launcher))
    except ShardwiseError as error:
        sys.exit(str(error))
    comm = mpi.COMM_WORLD
    said = {
        "rank": comm.rank,
        "size": comm.size,
        "sum": comm.allreduce(1),
        "host": socket.gethostname(),
        "mpi": " ".join(mpi.Get_library_version().splitlines()[0].strip("\0").split()),
    }
    os.write(1, f"{json.dumps(said)}\n".encode())  # in one piece: lines of ranks do not mix


if __name__ == "__main__":
    say_hello(int(sys.argv[1]), sys.argv[2])
