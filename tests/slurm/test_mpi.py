"""Shards over MPI ranks in a real Slurm job: which devices compute, and what outlives what."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.spread import SlurmSite
from tests.slurm.test_pool import test_a_requeued_job_goes_on
from tests.slurm.test_run import night
from tests.spread import Spread
from tests.spread_situations import (
    test_a_cancelled_job_leaves_no_process,
    test_a_killed_leader_ends_the_job_and_a_rerun_does_the_rest,
    test_a_killed_worker_is_replaced,
    test_a_second_run_is_told_of_the_first,
    test_a_shard_that_always_fails_costs_itself,
)
from tests.whole_runs import (
    test_a_killed_snakemake_never_costs_a_shard_twice,
    test_the_digits_have_the_same_bits,
)

__all__ = [  # what is the same under every scheduler
    "night",
    "test_a_cancelled_job_leaves_no_process",
    "test_a_killed_leader_ends_the_job_and_a_rerun_does_the_rest",
    "test_a_killed_snakemake_never_costs_a_shard_twice",
    "test_a_killed_worker_is_replaced",
    "test_a_requeued_job_goes_on",
    "test_a_second_run_is_told_of_the_first",
    "test_a_shard_that_always_fails_costs_itself",
    "test_the_digits_have_the_same_bits",
]

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

PMI = "srun --mpi=pmi2"
SIX = ("--gpus=6", "-n6", "-c1")
ON_BOTH = ("-p", "gpu", "-N2", "--gres=gpu:2", "-c1")
PLACEMENTS = {
    "a rank a device": ((*SIX, "--ntasks-per-gpu=1"), PMI, "device", [2, 4]),
    "round-robin": (SIX, f"{PMI} --distribution=cyclic", "device", [2, 4]),
    "mpiexec": (SIX, "mpiexec", "device", [2, 4]),
    "mpiexec on one node": (("--gres=gpu:2", "-n2", "-N1"), "mpiexec", "device", [2]),
    "a device bound to each": (("--gpus=4", "-n4"), f"{PMI} --gpu-bind=single:1", "device", [4]),
    "a rank a node": ((*ON_BOTH, "-n2", "--ntasks-per-node=1"), PMI, "node", [2, 2]),
    "two ranks a node": ((*ON_BOTH, "-n4", "--ntasks-per-node=2"), "auto", "node", [2, 2]),
}


@pytest.fixture
def dispatch() -> str:
    """How whole runs spread their shards."""
    return "mpi"


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:
    """Jobs of four ranks on two nodes; an idle cluster afterwards."""
    yield SlurmSite(slurm, Spread(tmp_path), "mpi", *ON_BOTH, "-n4", "--ntasks-per-node=2")
    slurm.cancel_all()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_device_that_was_granted_computes(site: SlurmSite, placement: str) -> None:
    """However the ranks lie: one shard a device at once, all devices, on all nodes; same bits."""
    options, launcher, workers, expected = PLACEMENTS[placement]
    site.spread.put("hold")
    job = site.submit(*options, launcher=launcher, workers=workers)
    site.all_at_work(sum(expected))
    site.spread.take_away("hold")
    assert site.finish(job)[0] == 0, site.printed(job)
    site.spread.check()
    nodes = [device.split()[0] for device in site.spread.uses()]
    assert sorted(nodes.count(node) for node in set(nodes)) == expected
    assert set(site.spread.starts().values()) == {1}
