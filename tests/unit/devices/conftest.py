"""Leases and the device of one test alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from shardwise.devices import choose, leases


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of leases for this test alone, whose process has no device yet."""
    monkeypatch.setenv("SHARDWISE_LEASES", str(tmp_path / "leases"))
    held: list[int] = []
    monkeypatch.setattr(leases, "_HELD", held)
    monkeypatch.setattr(choose, "_taken", [])
    yield tmp_path / "leases"
    for descriptor in held:
        os.close(descriptor)
