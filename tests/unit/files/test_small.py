"""Small files are read as they are, or not at all; nothing is waited for and nothing stays open."""

import os

import pytest
from shardwise.errors import IntegrityError
from shardwise.files import small


def test_a_file_is_read_whole(tmp_path):
    """Up to the most that it may have; of a larger one the end, where that is asked for."""
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert small.read(path) == small.read(path, 5) == b"12345"
    with pytest.raises(IntegrityError, match="has 5 bytes, more than any such file"):
        small.read(path, 4)
    assert small.read(path, 4, end=True) == b"2345"
    assert small.read(tmp_path / "none") is None


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_file_is_refused(tmp_path, kind):
    """A pipe is not waited for; a link only counts where it may stand for a file."""
    path, other = tmp_path / "a", tmp_path / "b"
    other.write_text("{}")
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(other)}[
        kind
    ]()
    with pytest.raises(IntegrityError, match=r"is not a file|cannot be read"):
        small.read(path, follow=False)
    assert small.read_json(path) == ({} if kind == "link" else None)


@pytest.mark.parametrize("text", ["", "{", "9" * 5000, "[" * 100_000])
def test_what_is_no_json_says_nothing(tmp_path, text):
    """Not even how it fails."""
    path = tmp_path / "a"
    path.write_text(text)
    assert small.read_json(path) is None
