"""A reduce in small steps that commits its work after each, and that may be killed on the way.

    mpiexec -n RANKS python -m mpi4py -m tests.killed_program PLAN PIECE BATCH VICTIM AFTER NAME …

The rank VICTIM kills itself after AFTER batches; -1 is nobody. Each rank prints how many it read.
"""

import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI
from shardwise.files import pieces
from shardwise.plan import memory
from shardwise.reduce import job, scan


def main() -> None:
    """Reduce, or die."""
    plan, piece, batch, victim, after, *names = sys.argv[1:]
    pieces.CHECKSUM_PIECE_BYTES, memory.REDUCE_BATCH_BYTES = int(piece), int(batch)
    comm, seen = MPI.COMM_WORLD, 0
    give_back = scan.Scan.give_back

    def counted(self: scan.Scan, part: scan.Part) -> None:
        nonlocal seen
        if (comm.rank, seen) == (int(victim), int(after)):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        give_back(self, part)

    scan.Scan.give_back = counted
    job.run(comm, Path(plan), names, save_every=0.0)
    sys.stdout.write(f"{seen}\n")


if __name__ == "__main__":
    main()
