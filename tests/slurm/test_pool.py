"""All shards by one job on one node of a real Slurm, a process on each of its devices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from tests.slurm.cluster import SlurmCluster
from tests.slurm.spread import SlurmSite
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
    "test_a_second_run_is_told_of_the_first",
    "test_a_shard_that_always_fails_costs_itself",
    "test_the_digits_have_the_same_bits",
]

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture
def dispatch() -> str:
    """How whole runs spread their shards."""
    return "pool"


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:
    """Jobs on a node with four devices; an idle cluster afterwards."""
    yield SlurmSite(slurm, Spread(tmp_path), "pool", "--gres=gpu:4", "-N1", "-n1", "-c1")
    slurm.cancel_all()


@pytest.mark.fault("a job that is requeued")
def test_a_requeued_job_goes_on(slurm: SlurmCluster, site: SlurmSite) -> None:
    """Started again by Slurm, it computes what is missing; each shard commits once."""
    job = site.submit(*site.four, "--requeue")
    processes.until(lambda: len(site.spread.receipts()) >= 3)
    site.spread.put("hold")
    before = site.spread.receipts()
    slurm.call("scontrol", "requeue", str(job))
    processes.until(lambda: not site.spread.living())
    site.spread.take_away("hold")
    slurm.call("scontrol", "release", str(job), check=False)
    assert site.finish(job)[0] == 0, site.printed(job)
    site.spread.check()
    after = site.spread.receipts()
    assert {shard: after[shard] for shard in before} == before
    assert slurm.show_job(job)["Restarts"] == "1"
