"""The pytest fixtures `uge` and `uge_hosts`: real Grid Engine clusters for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import session_cluster
from tests.uge.cluster import UgeCluster
from tests.uge.hosts import TwoHosts


@pytest.fixture(scope="session")
def uge() -> Iterator[UgeCluster]:
    """Yield a running cluster of one host."""
    with session_cluster("uge", UgeCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def uge_hosts() -> Iterator[UgeCluster]:
    """Yield a running cluster of two hosts; skip with the reason where they cannot be made."""
    if reason := TwoHosts.missing():
        pytest.skip(f"no two hosts on this machine: {reason}")
    with session_cluster("uge-hosts", lambda: UgeCluster(machines=TwoHosts())) as cluster:
        yield cluster
