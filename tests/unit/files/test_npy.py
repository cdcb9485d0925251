"""Shapes that NumPy's parser lets pass; `tests/hostile` has the more common errors of headers."""

import pytest
from shardwise.files.npy import read_header

from tests.factories import refusal
from tests.hostile.bad_inputs import npy


@pytest.mark.parametrize("shape", ["(True, 4)", "(-2, -2)", str((1,) * 65)])
def test_a_shape_is_of_few_whole_numbers(tmp_path, shape):
    """The message names the file."""
    path = tmp_path / "bad.npy"
    path.write_bytes(npy("'<f4'", shape, b"1234" * 4))
    assert f"{path}: its .npy header is damaged" in refusal(read_header, path)
