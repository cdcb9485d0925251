"""Workspaces of the tests of whole runs."""

from pathlib import Path

import pytest

from tests.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A fresh copy of the project."""
    return Workspace.create(tmp_path / "w")
