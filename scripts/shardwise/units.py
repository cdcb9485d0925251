"""Sizes and times as people write them."""

import re
import time
from fractions import Fraction

from shardwise.errors import short

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", 1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}iB": 1024**_power}
MIB = 1024**2


def parse_bytes(text: str | int) -> int:
    """Bytes from a number or a size such as ``16GiB`` or ``1.5 TB``; ValueError for all else."""
    number = r"[0-9]{1,24}(?:\.[0-9]{1,24})?"
    match = re.fullmatch(rf"\s*({number})\s*((?:[KMGTP]i?)?B|)\s*", str(text))
    if match and (size := int(Fraction(match[1]) * _UNITS[match[2]])):
        return size
    words = "is not a size of one byte or more; write for example 512MiB, 16GiB or 2TB"
    raise ValueError(f"{short(text)} {words}")


def human_bytes(size: float) -> str:
    """A size for people, in a binary unit with one decimal, such as ``1.5 GiB``."""
    value = float(min(size, 10**40))  # a damaged file may say any number
    unit, *larger = "B", "KiB", "MiB", "GiB", "TiB", "PiB"
    while larger and abs(value) >= 1023.95:  # what rounds to 1024.0 is 1.0 of the next unit
        value, (unit, *larger) = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def clock(since: float) -> str:
    """Seconds since 1970 as date and time for people, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))


def count(amount: int, noun: str) -> str:
    """A count with its noun, such as ``1 shard`` and ``12,000 shards``."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"


def seconds(value: float) -> str:
    """A duration for people, in one or two units."""
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24:02} h"
