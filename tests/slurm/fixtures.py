"""The pytest fixture `slurm`: one real Slurm cluster for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import session_cluster
from tests.slurm.cluster import SlurmCluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """Yield a running cluster."""
    with session_cluster("slurm", SlurmCluster) as cluster:
        yield cluster
