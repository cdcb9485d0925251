"""All shards by one job on one host of a real Grid Engine, a process on each of its devices.

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


@pytest.fixture
def dispatch() -> str:
    """How whole runs spread their shards."""
    return "pool"


@pytest.fixture
def site(uge: UgeCluster, tmp_path: Path) -> Iterator[UgeSite]:
    """Jobs on a host with four devices; an idle cluster afterwards."""
    yield UgeSite(uge, Spread(tmp_path), "pool", "-l", "gpu=4")
    uge.cancel_all()
