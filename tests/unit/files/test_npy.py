"""Headers of ``.npy`` files: every good one is read, every bad one is refused by name."""

import struct

import numpy as np
import pytest
from shardwise.files.npy import read_header

from tests.factories import refusal

FIELDS = "{'descr': %s, 'fortran_order': %s, 'shape': %s}"


def raw_file(text, data=b"", version=1, length=None):
    """The bytes of a .npy file with any text as its header."""
    body = text.encode("utf-8" if version == 3 else "latin-1")
    size = struct.pack("<H" if version == 1 else "<I", len(body) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + body + data


def fields(descr="'<f4'", fortran="False", shape="(2, 2)"):
    """The header's dictionary as text, each value as it is written."""
    return FIELDS % (descr, fortran, shape)


@pytest.mark.parametrize("descr", ["=f4", "|f4", "f4"])
def test_native_byte_order_has_other_spellings(tmp_path, descr):
    """A dtype without a byte order is this machine's own."""
    path = tmp_path / "a.npy"
    path.write_bytes(raw_file(fields(f"'{descr}'"), b"1234" * 4))
    assert read_header(path).native == np.float32


def test_long_integers_of_python_2(tmp_path):
    """NumPy reads them in versions 1 and 2, and so do we."""
    path = tmp_path / "a.npy"
    for version in (1, 2, 3):
        path.write_bytes(raw_file(fields(shape="(2L, 2L,)"), b"1234" * 4, version))
        if version < 3:
            assert read_header(path).shape == (2, 2)
    assert "damaged .npy header" in refusal(read_header, path)


BAD = {
    "npz": (b"PK\x03\x04 and so on", "is a zip archive, such as a .npz file"),
    "no length": (b"\x93NUMPY\x01\x00\x01", "length is not plausible"),
    "huge length": (raw_file(fields(), version=2, length=2**32 - 1), "length is not plausible"),
    "objects": (raw_file(fields("'|O'"), b"12345678" * 4), "never unpickled"),
    "truncated": (raw_file(fields(), b"1234" * 3), "is truncated: its header says shape (2, 2)"),
    "trailing": (raw_file(fields(), b"1234" * 5), "has trailing bytes"),
    "negative": (raw_file(fields(shape="(-2, -2)"), b"1234" * 4), "which is not a valid shape"),
    "void": (raw_file(fields("'|V4'"), b"1234" * 4), "raw or structured"),
    "bytes": (raw_file(fields("'|S4'"), b"1234" * 4), "holds strings"),
    "booleans": (raw_file(fields("'|b1'"), b"1234"), "save them as uint8"),
    "longdouble": (raw_file(fields("'<f16'"), b"1" * 64), "holds elements of type '<f16'"),
    "datetime": (raw_file(fields("'<M8[ns]'"), b"1" * 32), "holds elements of type '<M8[ns]'"),
    "unit on a float": (raw_file(fields("'<f4[ns]'"), b"1234" * 4), "f4[ns]"),
    "no dtype": (raw_file(fields("'hello world'"), b"1234" * 4), "holds elements of type"),
    "boolean dims": (raw_file(fields(shape="(True, 4)"), b"1234" * 4), "not a valid shape"),
    "list shape": (raw_file(fields(shape="[2, 2]"), b"1234" * 4), "which is not a valid shape"),
    "fortran is a number": (raw_file(fields(fortran="0"), b"1234" * 4), "fortran_order is 0"),
    "garbage": (raw_file("%$!\x01\x02", b"1234" * 4), "damaged .npy header"),
    "null bytes": (raw_file("\x00" * 80, b"1234" * 4), "damaged .npy header"),
    "key missing": (raw_file("{'descr': '<f4', 'shape': (2, 2)}", b"1234" * 4), "expected"),
    "key too many": (raw_file(fields()[:-1] + ", 'x': 1}", b"1234" * 4), "expected"),
    "unhashable key": (raw_file("{[]: 1}", b"1234" * 4), "damaged .npy header"),
    "deep parentheses": (raw_file("(" * 60000, b"1234" * 4), "damaged .npy header"),
    "deep sum": (raw_file("1" + "+1" * 30000, b"1234" * 4), "damaged .npy header"),
    "dims of 4000 digits": (raw_file(fields(shape=f"({'9' * 4000}, {'9' * 4000})")), "header"),
    "hexadecimal dims": (raw_file(fields(shape=f"(0x{'f' * 20000},)")), "header"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(tmp_path, case):
    """What is wrong with a file is said in one message that names the file."""
    raw, told = BAD[case]
    path = tmp_path / "bad.npy"
    path.write_bytes(raw)
    message = refusal(read_header, path)
    assert told in message
    assert str(path) in message
