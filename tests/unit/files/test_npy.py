"""Headers of ``.npy`` files; `tests/hostile/bad_inputs.py` has the more common errors."""

import struct

import numpy as np
import pytest
from shardwise.files.npy import read_header

from tests.factories import refusal


def raw_file(text, data=b"", version=1, length=None):
    """The bytes of a .npy file with any text as its header."""
    body = text.encode("utf-8" if version == 3 else "latin-1")
    size = struct.pack("<H" if version == 1 else "<I", len(body) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + body + data


def fields(descr="'<f4'", shape="(2, 2)"):
    """The header's dictionary as text, each value as it is written."""
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize(
    ("version", "descr", "shape"),
    [(version, descr, "(2L, 2L,)") for version in (1, 2) for descr in ("=f4", "|f4", "f4")]
    + [(3, "<f4", "(2, 2)")],
)
def test_other_spellings(tmp_path, version, descr, shape):
    """A dtype without a byte order is this machine's own; Python 2 wrote integers with an L."""
    path = tmp_path / "a.npy"
    path.write_bytes(raw_file(fields(f"'{descr}'", shape), b"1234" * 4, version))
    header = read_header(path)
    assert (header.native, header.shape) == (np.float32, (2, 2))


BAD = {
    "Python 2 in version 3": (raw_file(fields(shape="(2L,)"), b"12345678", 3), "is damaged"),
    "no UTF-8": (b"\x93NUMPY\3\0\1\0\0\0\xff", "header is damaged"),
    "huge length": (raw_file(fields(), version=2, length=2**32 - 1), "header is damaged"),
    "booleans": (raw_file(fields("'|b1'"), b"1234"), "save them as uint8"),
    "longdouble": (raw_file(fields("'<f16'"), b"1" * 64), "holds elements of type '<f16'"),
    "unit on a float": (raw_file(fields("'<f4[ns]'"), b"1234" * 4), "f4[ns]"),
    "boolean dims": (
        raw_file(fields(shape="(True, 4)"), b"1234" * 4),
        "at most 64 lengths",
    ),
    "key too many": (raw_file(fields()[:-1] + ", 'x': 1}", b"1234" * 4), "header is damaged"),
    "unhashable key": (raw_file("{[]: 1}", b"1234" * 4), "header is damaged"),
    "deep parentheses": (raw_file("(" * 9000, b"1234" * 4), "header is damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(tmp_path, case):
    """One message names the file, and says what is wrong with it."""
    raw, told = BAD[case]
    path = tmp_path / "bad.npy"
    path.write_bytes(raw)
    message = refusal(read_header, path)
    assert told in message
    assert str(path) in message
