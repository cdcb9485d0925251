"""Ranks leave no shared memory on this machine, even if they are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import factories, processes

RANKS = """
import os, sys, time
from argparse import Namespace
from shardwise.mpi import launch
mpi = launch.start_ranks(Namespace(ranks=3, launcher=None))
open(f"{sys.argv[1]}/{mpi.COMM_WORLD.rank}", "w").write(str(os.getpid()))
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.05)
assert mpi.COMM_WORLD.allreduce(1) == 3
"""


def segments_of(pid: int) -> list[str]:
    """The shared memory of a rank, as the kernel names it."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if "mpich_shm" in line})


@pytest.mark.parametrize("killed", [True, False])
def test_ranks_leave_no_shared_memory(tmp_path: Path, killed: bool) -> None:
    """It is unlinked once all ranks have mapped it; MPI ends well without the name."""
    program, files = tmp_path / "ranks.py", [tmp_path / str(rank) for rank in range(3)]
    program.write_text(RANKS)
    line, env = [sys.executable, program, tmp_path], {"PYTHONPATH": str(factories.SCRIPTS)}
    with subprocess.Popen(line, env=os.environ | env, start_new_session=True) as run:
        try:
            processes.until(lambda: all(file.exists() and file.read_text() for file in files))
            pids = [int(file.read_text()) for file in files]
            found, *others = [segments_of(pid) for pid in pids]
            assert found
            assert others == [found, found]
            assert all(name.endswith(" (deleted)") for name in found)
            if killed:
                processes.kill(pids)
            else:
                (tmp_path / "go").touch()
            assert (run.wait(timeout=60) == 0) != killed
        finally:
            processes.kill([run.pid])
    assert not any(os.path.exists(name.removesuffix(" (deleted)")) for name in found)
