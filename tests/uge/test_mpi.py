"""Shards over MPI ranks in a parallel environment: any placement, and what outlives what.

No job is requeued here: the project submits with `-r n`, and a job that was ended is run again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spread import Spread
from tests.spread_situations import (
    test_a_cancelled_job_leaves_no_process,
    test_a_killed_leader_ends_the_job_and_a_rerun_does_the_rest,
    test_a_killed_worker_is_replaced,
    test_a_second_run_is_told_of_the_first,
    test_a_shard_that_always_fails_costs_itself,
)
from tests.uge.cluster import UgeCluster
from tests.uge.spread import UgeSite
from tests.uge.test_run import night
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

pytestmark = [pytest.mark.uge, pytest.mark.timeout(600)]

PLACEMENTS = {
    "fill-up": (("-pe", "mpi", "4"), "device", [2, 2]),
    "fill-up, three": (("-pe", "mpi", "3"), "device", [1, 2]),
    "round-robin": (("-pe", "mpi_rr", "4"), "device", [2, 2]),
    "a rank a host": (("-pe", "mpi_rr", "2"), "node", [2, 2]),
}


@pytest.fixture
def dispatch() -> str:
    """How whole runs spread their shards."""
    return "mpi"


@pytest.fixture
def site(uge_hosts: UgeCluster, tmp_path: Path) -> Iterator[UgeSite]:
    """Jobs of four ranks on two hosts of two devices; an idle cluster afterwards."""
    spread = Spread(tmp_path, devices=2)
    yield UgeSite(uge_hosts, spread, "mpi", "-pe", "mpi_rr", "4", "-l", "gpuslot=1")
    uge_hosts.cancel_all()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_rank_has_a_device_of_its_own(site: UgeSite, placement: str) -> None:
    """However the slots lie: one shard a device at once, on both hosts; same bits."""
    options, workers, expected = PLACEMENTS[placement]
    site.spread.put("hold")
    job = site.submit(*options, workers=workers)
    site.all_at_work(sum(expected))
    site.spread.take_away("hold")
    assert site.finish(job)[0] == 0, site.printed(job)
    site.spread.check()
    hosts = [device.split()[0] for device in site.spread.uses()]
    assert sorted(hosts.count(host) for host in set(hosts)) == expected
    assert set(site.spread.starts().values()) == {1}
