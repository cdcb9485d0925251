"""Jobs that compute all shards of a plan, on a real scheduler."""

import shlex
import sys
from pathlib import Path

from tests import factories, processes
from tests.clusters.cluster import Cluster
from tests.spread import Spread


class SpreadJobs:
    """Jobs that compute what is missing of one plan."""

    def __init__(self, cluster: Cluster, dispatch: str, folder: Path) -> None:
        self.cluster, self._dispatch = cluster, dispatch
        self.spread = Spread(folder, devices=cluster.devices[dispatch])

    def submit(self, *options: str, **words: str) -> int:
        """Submit a job, by default with four devices."""
        if self._dispatch == "mpi":
            words.setdefault("launcher", self.cluster.launcher)
        more = [part for name, value in words.items() for part in (f"--{name}", value)]
        line = self.spread.line("--dispatch", self._dispatch, *more)
        return self.cluster.submit(line, *(options or self.cluster.one_job[self._dispatch]))

    def succeeds(self, job: int) -> None:
        """Wait for the end of a job, after which all products are there."""
        assert self.cluster.finish(job) == 0, self.cluster.printed(job)
        self.spread.check()

    def all_at_work(self, count: int = 4) -> None:
        """Wait until so many devices compute."""
        report = self.cluster.report
        processes.until(lambda: len(self.spread.devices_at_work()) == count, report=report)


# Each rank leaves a file, named by its rank, that holds its process number.
WAITING = """
import os, sys, time
from shardwise.mpi import launch
launch.relaunch(3, sys.argv[2])
from mpi4py import MPI
open(f"{sys.argv[1]}/{MPI.COMM_WORLD.rank}", "w").write(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
time.sleep(100)
"""


def waiting_ranks(
    cluster: Cluster, folder: Path, *options: str, launcher: str = "mpiexec"
) -> tuple[int, list[int]]:
    """A job whose three ranks only wait: its number, and the processes once all live."""
    program = folder / "waiting.py"
    program.write_text(WAITING)
    line = shlex.join([sys.executable, str(program), str(folder), launcher])
    job = cluster.submit(f"PYTHONPATH={shlex.quote(str(factories.SCRIPTS))} {line}", *options)
    paths = [folder / str(rank) for rank in range(3)]
    processes.until(lambda: all(path.exists() and path.read_text() for path in paths))
    return job, [int(path.read_text()) for path in paths]
