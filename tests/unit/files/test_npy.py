"""Headers of ``.npy`` files; `tests/hostile/bad_inputs.py` has the more common errors."""

import struct

import pytest
from shardwise.files.npy import read_header

from tests.factories import refusal

LIE = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"


def raw_file(text, length=None, version=1):
    """The bytes of a .npy file with any text as its header, before 16 bytes of elements."""
    wide = "<H" if version == 1 else "<I"
    size = struct.pack(wide, len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode() + b"1234" * 4


@pytest.mark.parametrize(("raw", "told"), [
    (raw_file(LIE.format("'<f4'", "(2, 2)"), 2**32 - 1, 2), "header is damaged"),
    (raw_file(LIE.format("'<f4'", "(True, 4)")), "header is damaged"),
    (raw_file(LIE.format("'<f4'", "(-2, -2)")), "header is damaged"),
    (raw_file(LIE.format("'<f4'", (1,) * 65)), "header is damaged"),
    (raw_file(LIE.format("()", "(2, 2)")), "header is damaged"),
    (raw_file("{[]: 1}"), "header is damaged"),
    (raw_file("(" * 9000), "header is damaged"),
    (raw_file("{}", version=3), "header is damaged"),
    (raw_file(LIE.format("'|b1'", "(4,)")), r"elements of type '|b1'; allowed are"),
    (raw_file(LIE.format("'<f16'", "(1,)")), r"elements of type '<f16'; allowed are"),
    (raw_file(LIE.format("[('x', '<f4')]", "(4,)")), r"elements of type '|V4'; allowed are"),
])  # fmt: skip
def test_bad_files_are_refused(tmp_path, raw, told):
    """One message names the file, and says what is wrong with it."""
    path = tmp_path / "bad.npy"
    path.write_bytes(raw)
    message = refusal(read_header, path)
    assert told in message
    assert str(path) in message
