"""The test cluster itself does what the tests that use it rely on."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from tests.slurm.cluster import SlurmCluster

pytestmark = pytest.mark.slurm

PRINT_RANK = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
node = os.environ["SLURMD_NODENAME"]
rows = world.gather(f"rank {world.rank} of {world.size} on {node}")
if world.rank == 0:
    print(*rows, sep="\\n")
"""


@pytest.fixture(autouse=True)
def _no_job_remains(slurm: SlurmCluster) -> Iterator[None]:
    """Give each test an empty queue."""
    yield
    slurm.cancel_all()


def test_fifth_job_waits_for_one_of_four_gpus(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Jobs that run together hold distinct devices, and one more than there are has to wait."""
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.1; done"
    command = f"echo $CUDA_VISIBLE_DEVICES; {wait}"
    *first, fifth = [slurm.submit(command, "--gres=gpu:a100:1") for _ in range(5)]
    for job in first:
        slurm.wait_for(job, {"RUNNING"})
    (waiting,) = slurm.wait_for(fifth, {"PENDING"})
    assert waiting.nodes == ""
    gate.touch()
    states = [slurm.wait_for(job)[0].state for job in (*first, fifth)]
    assert states == ["COMPLETED"] * 5
    assert sorted(slurm.printed(job).strip() for job in first) == ["0", "1", "2", "3"]
    assert slurm.printed(fifth).strip() in {"0", "1", "2", "3"}


def test_resources_choose_the_node(slurm: SlurmCluster) -> None:
    """The GPU's model, the constraint and the partition each lead a job to its node."""
    wanted = {
        slurm.submit("true", "--gres=gpu:h200:1"): "gpu2",
        slurm.submit("true", "--gres=gpu:1", "--constraint=a100"): "gpu1",
        slurm.submit("true", "--gres=gpu:4"): "gpu1",
        slurm.submit("true", "--partition=cpu"): "cpu1",
        slurm.submit("true"): "cpu1",
    }
    assert {job: slurm.wait_for(job)[0].nodes for job in wanted} == wanted


def test_array_rows_carry_their_task(slurm: SlurmCluster) -> None:
    """Each array task is a row of its own, before it runs as well as when it has ended."""
    array = slurm.submit('[ "$SLURM_ARRAY_TASK_ID" != 2 ]', "--array=0-3%2")
    assert [job.task for job in slurm.jobs() if job.array_job_id == array] == [0, 1, 2, 3]
    ended = {job.task: job.state for job in slurm.wait_for(array)}
    assert ended == {0: "COMPLETED", 1: "COMPLETED", 2: "FAILED", 3: "COMPLETED"}


def test_job_of_a_crashed_node_ends_as_node_fail(slurm: SlurmCluster) -> None:
    """A crash goes unreported until the node is declared down, and the node can come back."""
    lost = slurm.submit("sleep 600", "--gres=gpu:h200:1", "--no-requeue")
    moved = slurm.submit("sleep 600", "--gres=gpu:h200:1", "--requeue")
    for job in (lost, moved):
        slurm.wait_for(job, {"RUNNING"})
    slurm.kill_node("gpu2")
    assert {job.state for job in slurm.jobs() if not job.finished} == {"RUNNING"}
    slurm.set_down("gpu2")
    assert slurm.wait_for(lost)[0].state == "NODE_FAIL"
    slurm.wait_for(moved, {"PENDING"})
    assert slurm.show_job(moved)["Restarts"] == "1"
    slurm.restore_node("gpu2")
    (after,) = slurm.wait_for(slurm.submit("true", "--gres=gpu:h200:1"))
    assert (after.state, after.nodes) == ("COMPLETED", "gpu2")


def test_srun_makes_one_world_over_two_nodes(slurm: SlurmCluster) -> None:
    """Under ``srun --mpi=pmi2`` two ranks on two nodes see each other."""
    pytest.importorskip("mpi4py")
    program = shlex.join([sys.executable, "-c", PRINT_RANK])
    job = slurm.submit(f"srun --mpi=pmi2 {program}", "--partition=gpu", "-N2", "-n2")
    slurm.wait_for(job)
    assert slurm.printed(job).splitlines() == ["rank 0 of 2 on gpu1", "rank 1 of 2 on gpu2"]


def test_srun_needs_no_slurm_variable(slurm: SlurmCluster) -> None:
    """A step starts from an environment without ``SLURM_CONF``, as in a Snakemake job."""
    step = "unset SLURM_CONF; srun --jobid=$SLURM_JOB_ID printenv SLURMD_NODENAME"
    job = slurm.submit(step, "--partition=cpu")
    slurm.wait_for(job)
    assert slurm.printed(job).strip() == "cpu1"


def test_jobs_inherit_no_library_path(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unpacked libraries serve Slurm only: jobs load what they would load elsewhere."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    job = slurm.submit("echo ${LD_LIBRARY_PATH-unset}; srun sh -c 'echo ${LD_LIBRARY_PATH-unset}'")
    slurm.wait_for(job)
    assert slurm.printed(job).split() == ["unset", "unset"]


def test_second_cluster_clears_a_crashed_one_away(slurm: SlurmCluster) -> None:
    """Two clusters live side by side; one started in a folder ends what was left running there."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        crashed = SlurmCluster(slurm.prefix).start(Path(folder))
        crashed.wait_for(crashed.submit("setsid sleep 600"), {"RUNNING"})
        left = processes.holders(crashed.layout.log("slurmctld"))
        with SlurmCluster(slurm.prefix).start(Path(folder)) as fresh:
            assert not left & processes.holders(fresh.layout.log("slurmctld"))
            assert fresh.jobs() == []
            assert set(slurm.nodes().values()) == {"IDLE"}
            log = fresh.layout.log("slurmctld")
        fresh.stop()  # a second time
        assert processes.holders(log) == set()
        crashed.stop()
