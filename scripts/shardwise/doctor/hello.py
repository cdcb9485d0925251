"""The hello of an MPI rank, in one line of JSON; the command starts its ranks itself.

python -m shardwise.doctor.hello RANKS LAUNCHER
"""

import json
import os
import re
import socket
import sys
from argparse import Namespace
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.reduce import launch


def main(ranks: int, launcher: str) -> None:
    """Start the ranks, or be one: tell the size of the world, after a sum over it."""
    try:
        mpi = launch.ranks(Namespace(ranks=ranks, launcher=launcher))
    except ShardwiseError as error:
        sys.exit(str(error))
    comm = mpi.COMM_WORLD
    said = {
        "rank": comm.rank,
        "size": comm.size,
        "sum": comm.allreduce(1),
        "host": socket.gethostname(),
        "mpi": " ".join(mpi.Get_library_version().splitlines()[0].strip("\0").split()),
        "library": _library(),
    }
    os.write(1, f"{json.dumps(said)}\n".encode())  # in one piece: lines of ranks do not mix


def _library() -> str | None:
    """The file of the MPI that mpi4py has loaded, where the kernel tells."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"(/.*/libmpi\w*\.so\S*)", maps)
    return found[1] if found else None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
