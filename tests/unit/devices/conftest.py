"""Leases and the device of one test alone."""

from pathlib import Path

import pytest
from shardwise.devices import choose


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of leases for this test alone, whose process has no device yet."""
    monkeypatch.setenv("SHARDWISE_LEASES", str(tmp_path / "leases"))
    monkeypatch.setattr(choose, "_taken", [])
    return tmp_path / "leases"
