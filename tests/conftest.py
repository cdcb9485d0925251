"""What holds for all tests."""

import pytest
from shardwise.devices import leases

from tests.faults.table import (  # noqa: F401 - pytest finds them here
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    tried,
)


@pytest.fixture(scope="session", autouse=True)
def _bytecode():
    """The many processes of the tests keep what they have compiled, wherever the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_leases(tmp_path_factory):
    """Leases of this process lie apart: it keeps its GPU, which the jobs it starts need too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "FOLDER", tmp_path_factory.mktemp("own") / "leases")
        yield
