"""The copy of a shard: the same bytes, a checksum that multiply agrees with, and nothing half."""

import os

import pytest
from shardwise.errors import IntegrityError
from shardwise.files import extents, pieces
from shardwise.multiply import copy

from tests import factories
from tests.factories import noise


def test_an_input_that_is_cut_short_under_way_leaves_nothing(tmp_path, monkeypatch):
    """All threads fail at once when the file ends early; none waits for another for ever."""
    monkeypatch.setattr(pieces, "PART_BYTES", 800)
    made = factories.plan(tmp_path, noise((50, 10, 10)), shards=1)
    read = extents.OpenFile.read

    def cut_first(self, *arguments):
        os.truncate(tmp_path / "input.npy", 200)
        return read(self, *arguments)

    monkeypatch.setattr(extents.OpenFile, "read", cut_first)
    # A thread that comes late finds the file changed, or shorter than its header says.
    with pytest.raises(IntegrityError, match=r"became shorter|has changed|is truncated"):
        copy.materialize(made, "00000")
    assert list((made.results.root / "shards").iterdir()) == []
