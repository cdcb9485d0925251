"""MPI ranks that only wait, as a job of a scheduler."""

import shlex
import sys
from pathlib import Path

from tests import factories, processes
from tests.clusters.cluster import Cluster

# Each rank leaves a file, named by its rank, that holds its process number.
WAITING = """
import os, sys, time
from argparse import Namespace
from shardwise.mpi import launch
MPI = launch.start_ranks(Namespace(ranks=3, launcher=sys.argv[2]))
open(f"{sys.argv[1]}/{MPI.COMM_WORLD.rank}", "w").write(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
time.sleep(100)
"""


def waiting_ranks(
    cluster: Cluster, folder: Path, *options: str, launcher: str = "mpiexec"
) -> tuple[int, list[int]]:
    """Submit three ranks that only wait; return the job's number, and their pids once all live."""
    program = folder / "waiting.py"
    program.write_text(WAITING)
    line = shlex.join([sys.executable, str(program), str(folder), launcher])
    job = cluster.submit(f"PYTHONPATH={shlex.quote(str(factories.SCRIPTS))} {line}", *options)
    paths = [folder / str(rank) for rank in range(3)]
    processes.until(lambda: all(path.exists() and path.read_text() for path in paths))
    return job, [int(path.read_text()) for path in paths]
