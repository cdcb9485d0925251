"""Shards over MPI ranks in a real Slurm job: which devices compute, and what outlives what."""

from pathlib import Path

import pytest

from tests import processes
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import FINAL_STATES
from tests.spread import BAD, Spread, kill

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

PMI = "srun --mpi=pmi2"
ON_BOTH = ("-p", "gpu", "-N2", "--gres=gpu:2")
PLACEMENTS = {
    "a rank a device": (("--gpus=6", "-n6", "--ntasks-per-gpu=1"), PMI, "device", [2, 4]),
    "round-robin": (("--gpus=6", "-n6"), f"{PMI} --distribution=cyclic", "device", [2, 4]),
    "mpiexec": (("--gpus=6", "-n6"), "mpiexec", "device", [2, 4]),
    "a device bound to each": (("--gpus=4", "-n4"), f"{PMI} --gpu-bind=single:1", "device", [4]),
    "a rank a node": ((*ON_BOTH, "-n2", "--ntasks-per-node=1"), PMI, "node", [2, 2]),
    "two ranks a node": ((*ON_BOTH, "-n4", "--ntasks-per-node=2"), "auto", "node", [2, 2]),
}
SPREAD = (*ON_BOTH, "-n4", "--ntasks-per-node=2")


@pytest.fixture
def spread(slurm: SlurmCluster, tmp_path: Path) -> Spread:
    """A plan, and an idle cluster afterwards."""
    yield Spread(tmp_path)
    slurm.cancel_all()


def submit(slurm: SlurmCluster, spread: Spread, *options: str, **words: str) -> int:
    """Submit the job that computes what is missing."""
    more = [part for name, value in words.items() for part in (f"--{name}", value)]
    return slurm.submit(spread.line("--dispatch", "mpi", *more), *options)


def finish(slurm: SlurmCluster, job: int, code: str = "0:0") -> str:
    """Wait for the end of a job, and give what it printed."""
    slurm.wait_for(job, FINAL_STATES, timeout_s=60)
    assert slurm.show_job(job)["ExitCode"] == code, slurm.printed(job)
    return slurm.printed(job)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_device_that_was_granted_computes(
    slurm: SlurmCluster, spread: Spread, placement: str
) -> None:
    """However the ranks lie: one shard a device at once, all devices, on all nodes; same bits."""
    options, launcher, workers, expected = PLACEMENTS[placement]
    finish(slurm, submit(slurm, spread, *options, launcher=launcher, workers=workers))
    spread.check()
    uses = spread.uses()
    nodes = [device.split()[0] for device in uses]
    assert sorted(nodes.count(node) for node in set(nodes)) == expected, uses
    assert set(spread.starts().values()) == {1}


def test_a_killed_worker_is_replaced(slurm: SlurmCluster, spread: Spread) -> None:
    """Its shard is tried again; nothing else is."""
    spread.put("hold")
    job = submit(slurm, spread, *SPREAD)
    processes.until(lambda: spread.begun() >= 4)
    kill(min(spread.workers()))
    processes.until(lambda: "SIGKILL" in slurm.printed(job))
    spread.take_away("hold")
    finish(slurm, job)
    spread.check()
    assert sorted(spread.starts().values()) == [1] * 23 + [2]


def test_a_killed_rank_ends_the_job_and_a_rerun_does_the_rest(
    slurm: SlurmCluster, spread: Spread
) -> None:
    """What was whole stays as it is, and no process of the first job lives on."""
    job = submit(slurm, spread, *SPREAD)
    processes.until(lambda: len(spread.receipts()) >= 3)
    spread.put("hold")
    kill(spread.ranks()[3])
    (done,) = slurm.wait_for(job, FINAL_STATES, timeout_s=60)
    assert done.state == "FAILED"
    processes.until(lambda: not spread.living(), 30)
    before = spread.receipts()
    assert 3 <= len(before) < 24
    spread.take_away("hold")
    finish(slurm, submit(slurm, spread, *SPREAD, workers="node"))
    spread.check()
    assert {shard: spread.receipts()[shard] for shard in before} == before


def test_a_shard_that_always_fails_costs_itself(slurm: SlurmCluster, spread: Spread) -> None:
    """All others finish; the job ends with its code, and its last words name it."""
    spread.put("bad")
    job = submit(slurm, spread, *SPREAD)
    printed = finish(slurm, job, "2:0")
    spread.check(without=[BAD])
    *_, named, last = printed.splitlines()
    assert f"ERROR shard {BAD:05}: " in named
    assert "this one never works" in named
    assert "of 24 shards 1 failed" in last


def test_a_cancelled_job_leaves_no_process(slurm: SlurmCluster, spread: Spread) -> None:
    """Neither ranks nor workers, nor what starts them, on either node."""
    spread.put("hold")
    job = submit(slurm, spread, *SPREAD)
    processes.until(lambda: len(spread.workers()) == 4 and spread.begun() >= 4)
    slurm.call("scancel", str(job))
    processes.until(lambda: not spread.living(), 30)


def test_a_second_run_is_told_of_the_first(slurm: SlurmCluster, spread: Spread) -> None:
    """It ends with 75 and damages nothing."""
    spread.put("hold")
    first = submit(slurm, spread, *ON_BOTH, "-n2", "--ntasks-per-node=1")
    processes.until(lambda: spread.begun() >= 2)
    printed = finish(slurm, submit(slurm, spread, "-p", "cpu", "-n2"), "75:0")
    assert "its shards are being computed by process" in printed
    assert f"slurm {first}" in printed
    spread.take_away("hold")
    finish(slurm, first)
    spread.check()
