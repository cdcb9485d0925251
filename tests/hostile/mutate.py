"""Damages valid files, as accidents and hostile people do.

All random choices come from one `random.Random`, so the seed of a case repeats it.
"""

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

MOST_BYTES = 1 << 16  # Longer cases take time, and shorter ones find the same faults.

NUMBERS = (
    "0", "-0", "-1", "1", "2", "1.0", "2.5", "1e999", "-1e999", "NaN", "Infinity", "-Infinity",
    "1_0", "01", "0x10", "1:30:00", "\u0661\u0662", "\u00b2", "127", "65536", str(2**31),
    str(2**63), str(2**64), str(10**19), str(10**30), str(10**400), "9" * 4301, "-" + "9" * 4301,
    "1e-400", "0xffffffffffffffffff",
)  # fmt: skip
TOKENS = (
    b"\0", b"\n", b"\r", b"\t", b"\t\t\t", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"(", b")",
    b":", b": ", b",", b"-", b"%", b"#", b"~", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28",
    b"\\ud800", b'"\\u0000"', "\u0661".encode(), "\u2028".encode(), "\U0001f600".encode(),
    b"null", b"true", b"False", b"None", b"''", b'""', b"{}", b"[]", b"()", b"..", b"../../x", b"/",
    b"$(touch x)", b"`touch x`", b"; rm -rf x", b"__import__('os').abort()", b"lambda: 0",
    b"!!python/object/apply:os.abort []", b"!!python/name:os.abort", b"!!bool x", b"!!int x",
    b"!!float x", b"!!timestamp x", b"!!binary x", b"!!set {a}", b"!!map [", b"2024-13-45",
    b"&a [*a]", b"&a {b: *a}", b"&a", b"*a", b"<<: *a", b"---\n", b"? ", b"- ", b"|\n", b">\n",
    b"? [a]: b", b"<O", b"|O", b"'|O'", b"V8", b"S", b"U0", b"(2,)f4", b"f4,f4", b"M8[ns]",
    b"0-99999999999", b"1:0",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2.0, 1e300, float("inf"), float("nan"), 10**19, 10**400, "", "x",
    "\ud800", "\0", "\n", "../x", "auto", "9" * 5000, "\u0661", "<f4", "|O", "S", [], {}, [0],
    ["x"], [[]], {"x": 1}, [0, 10**12], [-1, -1], [[0, 10**9]], [["a", "b"]], "0-9999999999",
)  # fmt: skip
DAMAGES = (
    "flip", "truncate", "repeat", "repeat", "splice", "token", "number", "number", "word", "nest",
    "value", "value", "value",
)  # fmt: skip
BRACKETS = ((b"[", b"]"), (b"(", b")"), (b'{"a":', b"}"), (b"-", b""))
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def mutated(raw: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A file after one to four damages; parts of ``others`` may get into it."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        raw = _damaged(raw, random, others)[:MOST_BYTES]
    return raw


def _damaged(raw: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    low, high = _slice(raw, random)
    before, part, after = raw[:low], raw[low:high], raw[high:]
    match random.choice(DAMAGES):
        case "flip" if part:
            part = bytes([part[0] ^ 1 << random.randrange(8)]) + part[1:]
        case "truncate":
            part = after = b""
        case "repeat":
            part *= random.choice((0, 2, 3, 50, 3000))
        case "splice":
            other = random.choice(others)
            part = other[slice(*_slice(other, random))]
        case "token":
            part = random.choice(TOKENS) + random.choice((part, b""))
        case "nest":
            opened, closed = random.choice(BRACKETS)
            deep = random.choice((2, 90, 1100, 12000))
            part = opened * deep + part + closed * deep
        case "number" if found := [*_NUMBER.finditer(raw)]:
            number = random.choice(found)
            before, after = raw[: number.start()], raw[number.end() :]
            part = random.choice(NUMBERS).encode()
        case "value":
            return _with_other_value(raw, random)
        case _:
            return _with_other_word(raw, random)
    return before + part + after


def _slice(raw: bytes, random: Random) -> tuple[int, int]:
    """A part of a file, mostly a short one."""
    low = random.randrange(len(raw) + 1)
    return low, low + random.choice((1, 2, 4, 16, 64, 1024))


def _with_other_word(raw: bytes, random: Random) -> bytes:
    """Replace a word or value: the text between two punctuation marks of a format."""
    parts = re.split(rb"([\t\n,:{}()\[\] ]+)", raw)
    parts[random.randrange(len(parts))] = random.choice(TOKENS)
    return b"".join(parts)


def _with_other_value(raw: bytes, random: Random) -> bytes:
    """Replace or remove one value in a line or a file of JSON."""
    lines = raw.split(b"\n") if random.randrange(2) else [raw]
    at = random.randrange(len(lines))
    try:
        tree = json.loads(lines[at])
        if places := list(_places(tree)):
            holder, key = random.choice(places)
            if random.randrange(5):
                holder[key] = random.choice(VALUES)
            else:
                del holder[key]
            lines[at] = json.dumps(tree).encode()
        return b"\n".join(lines)
    except (ValueError, RecursionError):  # no JSON, or nested by an earlier damage
        return _with_other_word(raw, random)


def _places(tree: Any) -> Any:
    """Yield every list or mapping in a tree, once with each of its keys."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])
