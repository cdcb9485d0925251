"""Sizes and times as people write them."""

import math
import re
import time
from fractions import Fraction

from shardwise.errors import one_line, short

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}B": 1000**i for i, p in enumerate(("K", "M", "G", "T", "P"), 1)}
_UNITS |= {f"{p}iB": 1024**i for i, p in enumerate(("K", "M", "G", "T", "P"), 1)}
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_MOST_CHARACTERS = 600
MIB = 1024**2
DASH = "–"  # stands for an unknown value


def parse_bytes(text: str | int) -> int:
    """Bytes from a number or a size such as ``16GiB`` or ``1.5 TB``.

    Raises ValueError for anything else, and for sizes under one byte.
    """
    number = r"[0-9]{1,24}(?:\.[0-9]{1,24})?"
    match = re.fullmatch(rf"\s*({number})\s*([KMGTP]?i?B?)\s*", str(text))
    if not match or match[2] not in _UNITS:
        raise ValueError(f"{short(text)} is not a size; write for example 512MiB, 16GiB or 2TB")
    size = int(Fraction(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise ValueError(f"{short(text)} is less than one byte")
    return size


def human_bytes(size: int) -> str:
    """A size for people, in a binary unit with one decimal, such as ``1.5 GiB``."""
    value = float(min(size, 10**40))  # a damaged file may say any number
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.95:  # what rounds to 1024.0 is 1.0 of the next unit
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def decimal(value: float, unit: str) -> str:
    """An amount or a rate, with three digits at most and a decimal prefix, such as ``3.9 GB/s``."""
    place = 0
    while abs(value) >= 999.5 and place < len(_PREFIXES) - 1:
        value, place = value / 1000, place + 1
    return f"{value:.3g} {_PREFIXES[place]}{unit}"


def clock(since: float) -> str:
    """Seconds since 1970 as date and time for people, in the local time zone."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (ValueError, OverflowError, OSError):  # beyond any calendar
        return "an unknown time"


def plain(value: object) -> str:
    """Any value as one line of printable text of limited length."""
    return one_line(str(value))[:_MOST_CHARACTERS]


def count(amount: int, noun: str = "") -> str:
    """A count with its noun, such as ``1 shard`` and ``12,000 shards``."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}" if noun else f"{amount:,}"


def seconds(value: float | None) -> str:
    """A duration for people, in one or two units."""
    if value is None or math.isnan(value):
        return DASH
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24:02} h"


def share(value: float | None) -> str:
    """A fraction as a percentage; a little is not shown as 0 %, nor nearly all as 100 %."""
    if value is None or math.isnan(value):
        return DASH
    percent = 100 * value
    if 0 < percent < 1:
        return "< 1 %"
    return f"{percent:.0f} %" if percent < 99.5 or value >= 1 else "> 99 %"
