"""Small files are read whole or not at all."""

import pytest
from shardwise.errors import IntegrityError
from shardwise.files import small


def test_a_file_is_read_whole(tmp_path):
    """If it has no more bytes than the limit."""
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert small.read(path) == small.read(path, 5) == b"12345"
    with pytest.raises(IntegrityError, match="has 5 bytes, too many for this file"):
        small.read(path, 4)
    assert small.read(tmp_path / "none") is None
