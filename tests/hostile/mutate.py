"""Damages valid files, as accidents and hostile people do.

All random choices come from one `random.Random`, so the seed of a case repeats it.
"""

import json
import re
from collections.abc import Sequence
from random import Random

MOST_BYTES = 1 << 16  # Longer cases take time, and shorter ones find the same faults.

NUMBERS = (
    "0", "-0", "-1", "1", "2", "1.0", "2.5", "1e999", "-1e999", "NaN", "Infinity", "-Infinity",
    "1_0", "01", "0x10", "\u0661\u0662", "\u00b2", "127", "65536", str(2**31), str(2**63),
    str(2**64), str(10**19), str(10**30), str(10**400), "9" * 4301, "-" + "9" * 4301, "1e-400",
)  # fmt: skip
TOKENS = (
    b"", b"\0", b"\n", b"\t", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"(", b")", b":", b",",
    b"-", b"%", b"#", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\\ud800", b'"\\u0000"',
    "\u0661".encode(), "\u2028".encode(), "\U0001f600".encode(), b"null", b"true", b"False",
    b"None", b"''", b"()", b"../../x", b"$(touch x)", b"`touch x`", b"__import__('os').abort()",
    b"lambda: 0", b"'|O'", b"'<f4'", b"'V8'", b"(2,)f4", b"'f4,f4'", b"M8[ns]",
    *map(str.encode, NUMBERS),
)  # fmt: skip
VALUES = (
    "", "x", "\ud800", "\0", "\n", "../x", "auto", "9" * 5000, "\u0661", "<f4", "|O", "S", [], {},
    [0], ["x"], [[]], {"x": 1}, [0, 10**12], [-1, -1], [[0, 10**9]], [["a", "b"]],
)  # fmt: skip
WORDS = (*TOKENS, *(json.dumps(value).encode() for value in VALUES))
DAMAGES = ("flip", "truncate", "repeat", "splice", "nest", "insert", "drop", *["replace"] * 6)
BRACKETS = ((b"[", b"]"), (b"(", b")"), (b'{"a":', b"}"), (b"-", b""))
_PART = rb"""\{[^{}]*\}|\[[^][]*\]|\([^()]*\)|"[^"]*"|'[^']*'|[\w.+-]+"""
_PATTERNS = {"replace": re.compile(_PART), "drop": re.compile(rb'"[^"]*": ?(?:%s),?\s*' % _PART)}
"""A value, or the text between two marks; and a key of JSON with its value."""


def mutated(raw: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A file after one to four damages; parts of ``others`` may get into it."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        raw = _damaged(raw, random, others)[:MOST_BYTES]
    return raw


def _damaged(raw: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    damage, (low, high) = random.choice(DAMAGES), _slice(raw, random)
    if damage in _PATTERNS and (found := _PATTERNS[damage].search(raw, low)):
        low, high = found.span()
    before, part, after = raw[:low], raw[low:high], raw[high:]
    match damage:
        case "flip" if part:
            part = bytes([part[0] ^ 1 << random.randrange(8)]) + part[1:]
        case "truncate":
            part = after = b""
        case "repeat":
            part *= random.choice((0, 2, 3, 50, 3000))
        case "splice":
            other = random.choice(others)
            part = other[slice(*_slice(other, random))]
        case "nest":
            opened, closed = random.choice(BRACKETS)
            deep = random.choice((2, 90, 1100, 12000))
            part = opened * deep + part + closed * deep
        case "insert":
            part = random.choice(WORDS) + part
        case "drop":
            part = b""
        case _:
            part = random.choice(WORDS)
    return before + part + after


def _slice(raw: bytes, random: Random) -> tuple[int, int]:
    """A part of a file, mostly a short one."""
    low = random.randrange(len(raw) + 1)
    return low, low + random.choice((1, 2, 4, 16, 64, 1024))
