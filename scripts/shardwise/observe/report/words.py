"""Numbers, times and names as the page writes them."""

import math
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from shardwise.errors import one_line
from shardwise.observe.observation import Device
from shardwise.units import decimal, number

DASH = "–"
"""Stands for what is not known."""

_MOST_CHARACTERS = 600


def plain(value: object) -> str:
    """Any value as one line of printable text that is not endless."""
    text = one_line(str(value))
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def marked(text: object) -> Markup:
    """A sentence whose pieces between backticks are code."""
    told = one_line(str(text))
    pieces = told.split("`")
    if len(pieces) % 2 == 0:  # one stands alone, and means nothing
        return Markup("{}").format(told)
    return Markup("").join(
        Markup("<code>{}</code>" if i % 2 else "{}").format(piece) for i, piece in enumerate(pieces)
    )


def inside(value: object, *keys: str) -> Any:
    """What lies under some keys of nested mappings; None where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def count(amount: int, noun: str = "") -> str:
    """A count with its noun, such as ``1 shard`` and ``12,000 shards``."""
    text = f"{amount:,}"
    if not noun:
        return text
    return f"{text} {noun if amount == 1 else noun + 's'}"


def seconds(value: float | None) -> str:
    """A duration in the two units that matter."""
    if value is None:
        return DASH
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    whole = round(value)
    for unit, below, unit_below, size in (
        ("min", "s", 60, 3600), ("h", "min", 3600, 86400), ("d", "h", 86400, math.inf),
    ):  # fmt: skip
        if whole < size:
            smaller = {"s": 1, "min": 60, "h": 3600}[below]
            return f"{whole // unit_below} {unit} {whole % unit_below // smaller:02} {below}"
    raise AssertionError(whole)


def rate(value: float | None, unit: str) -> str:
    """A rate or an amount with a decimal prefix, such as ``3.9 GB/s``."""
    return DASH if value is None else decimal(value, unit)


def speed(value: float | None) -> str:
    """A number of things a second, with as many digits as matter."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def energy(joules: float | None) -> str:
    """Energy in joules, and in watt-hours where these are more than a few."""
    if joules is None:
        return DASH
    told = rate(joules, "J")
    return told if joules < 3600 else f"{told} ({rate(joules / 3600, 'Wh')})"


def share(value: float | None) -> str:
    """A share of 1 in per cent."""
    if value is None:
        return DASH
    percent = 100 * value
    if 0 < percent < 1:
        return "<\u00a01\u00a0%"
    return f"{percent:.0f}\u00a0%" if percent < 99.5 or value >= 1 else ">\u00a099\u00a0%"


def figure(value: object) -> str:
    """A number of a result, with as many digits as people read."""
    if isinstance(value, list | tuple) and len(value) == 2:
        real, imaginary = (number(part) for part in value)
        if real is not None and imaginary is not None:
            return f"{real:.6g} {'-' if imaginary < 0 else '+'} {abs(imaginary):.6g}i"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15:
        return f"{value:,}"
    found = number(value)
    return plain(value) if found is None else f"{found:.6g}"


def moment(at: float | None) -> str:
    """A moment, in the time zone of the machine that writes the page."""
    try:
        return DASH if at is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return DASH


def short_uuid(uuid: str) -> str:
    """The kind and the first digits of a UUID, which tell the devices of a run apart."""
    kind, _, rest = uuid.partition("-")
    return plain(f"{kind}-{rest[:8]}" if rest else uuid[:12])


def device(found: Device | None) -> str:
    """A device as a row's name."""
    if found is None:
        return "unknown device"
    named = f"{plain(found.name)} · {plain(found.node)}"
    return f"{named} · {short_uuid(found.uuid)}" if found.uuid else named


def device_in_two_lines(found: Device | None) -> Markup:
    """A device for a narrow column: what it is, and below that where."""
    what, _, where = device(found).partition(" · ")
    return Markup("{}<br><span>{}</span>").format(what, where)


def link(path: str) -> str:
    """A path below the results folder as a relative address: never one of another kind."""
    return "./" + quote(path.encode("utf-8", "surrogateescape"), safe="/")


def some(names: list[str], most: int = 5) -> str:
    """The first names of a list, and how many there are beside them."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"
