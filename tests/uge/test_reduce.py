"""The reduce in a parallel environment: one world over the granted slots, and no rank left."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shardwise import ledger
from shardwise.planfile import Plan

from tests import factories, processes
from tests.uge.cluster import UgeCluster

pytestmark = pytest.mark.uge

PRINT_RANK = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size} on {socket.gethostname()}")
"""

# Read by every Python that starts with it on its path: in the ranks, rank 1 works for ever and the
# others wait for it. Each leaves a file named by its process and rank.
WAIT_FOR_EVER = """
import time
from pathlib import Path
from shardwise import reduce

def run(comm, plan_file, statistics):
    import os
    Path(__file__).with_name(f"{os.getpid()}.{comm.rank}").touch()
    if comm.rank == 1:
        time.sleep(600)
    comm.Barrier()

reduce.run = run
"""


@pytest.fixture(autouse=True)
def _no_job_remains(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test an empty queue."""
    yield
    for name in {"uge", "uge_hosts"} & set(request.fixturenames):
        request.getfixturevalue(name).cancel_all()


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    """A plan of products whose sum rounds, with its ledger."""
    made = factories.plan(tmp_path, factories.noise((9, 8, 8)), shards=3, materialize=False)
    ledger.write(factories.computed(made))
    return made


def launched(*words: str) -> str:
    """The command line that runs a program as three ranks."""
    launcher = Path(sys.executable).with_name("mpiexec")
    return shlex.join([str(launcher), "-n", "3", *words])


def reduce_line(made: Plan) -> str:
    """The command line of a job that sums a plan with three ranks."""
    return launched(*factories.command("reduce", "--plan", made.results.plan, "--ranks", 3))


def locally_summed(made: Plan) -> bytes:
    """The bytes of ``sum.npy`` as this machine makes it with two ranks; the file is removed."""
    done = factories.mpirun(2, made)
    assert done.returncode == 0, done.stderr
    path = made.results.statistic("sum")
    found = path.read_bytes()
    assert np.load(path).any()
    path.unlink()
    made.results.summary.unlink()
    return found


def endless(uge: UgeCluster, made: Plan, folder: Path) -> tuple[int, dict[int, int]]:
    """A job whose ranks never end: its number, and the process of each rank, once all live."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WAIT_FOR_EVER)
    path = f"PYTHONPATH={folder}:{factories.SCRIPTS}"
    job = uge.submit(reduce_line(made), "-pe", "mpi", "3", "-v", path)
    names = [".0", ".1", ".2"]
    uge.wait_until(lambda: sorted(file.suffix for file in folder.glob("*.[012]")) == names)
    return job, {int(file.suffix[1:]): int(file.stem) for file in folder.glob("*.[012]")}


def test_the_sum_in_a_parallel_environment_has_the_same_bits(uge: UgeCluster, made: Plan) -> None:
    """Three ranks on three slots write what two ranks without a scheduler write."""
    expected = locally_summed(made)
    job = uge.submit(reduce_line(made), "-pe", "mpi", "3")
    (record,) = uge.wait_for(job)
    assert (record.failed, record.exit_status, record.slots) == (0, 0, 3), uge.printed(job)
    assert made.results.statistic("sum").read_bytes() == expected


def test_a_damaged_product_ends_the_job_with_three(uge: UgeCluster, made: Plan) -> None:
    """The exit code of the ranks is the job's, and their message its output."""
    made.results.product("00001").unlink()
    job = uge.submit(reduce_line(made), "-pe", "mpi", "3")
    (record,) = uge.wait_for(job)
    assert (record.failed, record.exit_status) == (0, 3), uge.printed(job)
    assert "00001" in uge.printed(job)
    assert not made.results.statistic("sum").exists()


def test_a_killed_rank_ends_the_job_and_all_ranks(
    uge: UgeCluster, made: Plan, tmp_path: Path
) -> None:
    """The others, which wait for it, do not wait for ever."""
    job, ranks = endless(uge, made, tmp_path / "endless")
    os.kill(ranks[1], signal.SIGKILL)
    (record,) = uge.wait_for(job, timeout_s=10)
    assert record.failed == 0
    assert record.exit_status != 0
    assert not processes.living(ranks.values())


def test_a_deleted_job_leaves_no_rank(uge: UgeCluster, made: Plan, tmp_path: Path) -> None:
    """``qdel`` takes the launcher, what it started beside itself, and the ranks."""
    before = uge.own_processes()
    job, ranks = endless(uge, made, tmp_path / "endless")
    assert set(ranks.values()) <= uge.own_processes()
    uge.call("qdel", str(job))
    (record,) = uge.wait_for(job, timeout_s=10)
    assert (record.failed, record.exit_status) == (100, 137)
    uge.wait_until(lambda: uge.own_processes() <= before, 10)


def test_ranks_fill_the_granted_slots_of_two_hosts(uge_hosts: UgeCluster, made: Plan) -> None:
    """The launcher reads where slots were granted; where the ranks run changes no bit."""
    expected = locally_summed(made)
    show = launched(sys.executable, "-c", PRINT_RANK)
    line = f"cat $PE_HOSTFILE; {show}; exec {reduce_line(made)}"
    job = uge_hosts.submit(line, "-pe", "mpi_rr", "3")
    (record,) = uge_hosts.wait_for(job)
    printed = uge_hosts.printed(job).splitlines()
    assert (record.failed, record.exit_status) == (0, 0), printed
    granted = [line.split()[:2] for line in printed[:2]]
    hosts = [name for name, slots in granted for _ in range(int(slots))]
    assert sorted(set(hosts)) == ["n1", "n2"]
    ranks = [f"rank {rank} of 3 on {host}" for rank, host in enumerate(hosts)]
    assert sorted(printed[2:5]) == ranks
    assert made.results.statistic("sum").read_bytes() == expected
