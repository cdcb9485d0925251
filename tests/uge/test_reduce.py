"""The reduce in a parallel environment: one world over the granted slots, and no rank left."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shardwise.plan.plan import Plan
from shardwise.records import ledger

from tests import factories, processes
from tests.uge.cluster import UgeCluster

pytestmark = pytest.mark.uge

# Read by every Python that starts with it on its path: in the ranks, rank 1 works for ever and the
# others wait for it. Each leaves a file named by its process and rank.
WAIT_FOR_EVER = """
import time
from pathlib import Path
from shardwise.reduce import job

def run(comm, *settings):
    import os
    Path(__file__).with_name(f"{os.getpid()}.{comm.rank}").touch()
    if comm.rank == 1:
        time.sleep(600)
    comm.Barrier()

job.run = run
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


def reduce_line(made: Plan, *words: object) -> str:
    """The command line of a job that sums a plan; it starts its ranks itself."""
    return shlex.join(factories.command("reduce", "--plan", made.results.plan, *words))


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


def endless(
    uge: UgeCluster, made: Plan, folder: Path, environment: str = "mpi"
) -> tuple[int, dict[int, int]]:
    """A job whose ranks never end: its number, and the process of each rank, once all live."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WAIT_FOR_EVER)
    path = f"PYTHONPATH={folder}:{factories.SCRIPTS}"
    job = uge.submit(reduce_line(made, "--ranks", 3), "-pe", environment, "3", "-v", path)
    names = [".0", ".1", ".2"]
    uge.wait_until(lambda: sorted(file.suffix for file in folder.glob("*.[012]")) == names)
    return job, {int(file.suffix[1:]): int(file.stem) for file in folder.glob("*.[012]")}


def test_the_sum_in_a_parallel_environment_has_the_same_bits(uge: UgeCluster, made: Plan) -> None:
    """A rank on each granted slot writes what two ranks without a scheduler write."""
    expected = locally_summed(made)
    job = uge.submit(reduce_line(made), "-pe", "mpi", "3")
    (record,) = uge.wait_for(job)
    assert (record.failed, record.exit_status, record.slots) == (0, 0, 3), uge.printed(job)
    assert json.loads(made.results.summary.read_text())["ranks"] == 3
    assert made.results.statistic("sum").read_bytes() == expected


def test_more_ranks_than_slots_share_them(uge: UgeCluster, made: Plan) -> None:
    """A number of ranks that the user names is taken as it is."""
    job = uge.submit(reduce_line(made, "--ranks", 3), "-pe", "mpi", "2")
    (record,) = uge.wait_for(job)
    assert (record.failed, record.exit_status, record.slots) == (0, 0, 2), uge.printed(job)
    assert json.loads(made.results.summary.read_text())["ranks"] == 3


@pytest.mark.fault("a rank that raises")
def test_a_damaged_product_ends_the_job_with_three(uge: UgeCluster, made: Plan) -> None:
    """The exit code of the ranks is the job's, and their message its output."""
    made.results.product("00001").unlink()
    job = uge.submit(reduce_line(made), "-pe", "mpi", "3")
    (record,) = uge.wait_for(job)
    assert (record.failed, record.exit_status) == (0, 3), uge.printed(job)
    assert "00001" in uge.printed(job)
    assert not made.results.statistic("sum").exists()


@pytest.mark.fault("a rank that is killed")
def test_a_killed_rank_ends_the_job_and_all_ranks(
    uge: UgeCluster, made: Plan, tmp_path: Path
) -> None:
    """The others, which wait for it, do not wait for ever."""
    job, ranks = endless(uge, made, tmp_path / "endless")
    os.kill(ranks[1], signal.SIGKILL)
    (record,) = uge.wait_for(job)
    assert record.failed == 0
    assert record.exit_status != 0
    assert not processes.living(ranks.values())


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.parametrize(("hosts", "environment"), [("uge", "mpi"), ("uge_hosts", "mpi_rr")])
def test_a_deleted_job_leaves_no_rank(
    request: pytest.FixtureRequest, made: Plan, tmp_path: Path, hosts: str, environment: str
) -> None:
    """``qdel`` takes the launcher, what it started beside itself or elsewhere, and the ranks."""
    cluster: UgeCluster = request.getfixturevalue(hosts)
    before = cluster.own_processes()
    job, ranks = endless(cluster, made, tmp_path / "endless", environment)
    assert set(ranks.values()) <= cluster.own_processes()
    cluster.call("qdel", str(job))
    (record,) = cluster.wait_for(job)
    assert (record.failed, record.exit_status) == (100, 137)
    cluster.wait_until(lambda: cluster.own_processes() <= before)


@pytest.mark.fault("a rank that is killed")
def test_a_rank_ends_with_what_started_it(uge: UgeCluster, made: Plan, tmp_path: Path) -> None:
    """The launcher's process on a host may be killed alone: its ranks do not work on."""
    _, ranks = endless(uge, made, tmp_path / "endless")
    (proxy,) = processes.parents(ranks.values())
    processes.kill([proxy])
    uge.wait_until(lambda: not processes.living(ranks.values()))


def test_ranks_fill_the_granted_slots_of_two_hosts(uge_hosts: UgeCluster, made: Plan) -> None:
    """The launcher reads where slots were granted; where the ranks run changes no bit."""
    expected = locally_summed(made)
    line = f"cat $PE_HOSTFILE; {reduce_line(made)}"
    job = uge_hosts.submit(line, "-pe", "mpi_rr", "3")
    (record,) = uge_hosts.wait_for(job)
    printed = uge_hosts.printed(job).splitlines()
    assert (record.failed, record.exit_status) == (0, 0), printed
    granted = [line.split()[:2] for line in printed[:2]]
    nodes = {name: int(slots) for name, slots in granted}
    assert sorted(nodes) == ["n1", "n2"]
    assert json.loads(made.results.summary.read_text())["nodes"] == nodes
    assert made.results.statistic("sum").read_bytes() == expected
