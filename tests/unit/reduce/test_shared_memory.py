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


@pytest.mark.parametrize("end", ["killed", "by themselves"])
def test_ranks_leave_no_shared_memory(tmp_path: Path, end: str) -> None:
    """It is unlinked once all ranks have mapped it; MPI ends well without the name."""
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    run = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(factories.SCRIPTS)},
        start_new_session=True,
    )
    try:
        processes.until(lambda: len([p for p in tmp_path.glob("[0-9]") if p.read_text()]) == 3)
        pids = [int(path.read_text()) for path in tmp_path.glob("[0-9]")]
        found = [segments_of(pid) for pid in pids]
        assert all(names and names == found[0] for names in found)
        assert all(name.endswith(" (deleted)") for name in found[0])
        if end == "killed":
            processes.kill(pids)
        else:
            (tmp_path / "go").touch()
        assert (run.wait(timeout=60) == 0) == (end != "killed")
    finally:
        processes.kill([run.pid])
        run.wait()
    assert not any(os.path.exists(name.removesuffix(" (deleted)")) for name in found[0])
