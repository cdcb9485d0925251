"""A look at a run as lines of text, for a terminal of any size, or a file.

A line is made of pieces with a style each, so that it is cut by what is seen of it, and painted
last. What comes from files may hold anything: no character gets through that a terminal obeys.
Pure; standard library only.
"""

import math
import textwrap
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardwise.errors import one_line
from shardwise.observe.observation import DAMAGED, DONE, FAILED, RUNNING, WAITING, Device
from shardwise.observe.pace import Look, Row, failures
from shardwise.units import any_clock, human_bytes

Line = list[tuple[str, str]]
"""Pieces of text and their styles, keys of :data:`STYLES`."""

STYLES = {
    "": "", "bold": "1", "dim": "2", "good": "32", "busy": "36", "bad": "31", "odd": "33",
}  # fmt: skip
"""Codes of a terminal's colours, which leave their shades to the user's theme."""

_BAR = ((DONE, "█", "good"), (RUNNING, "▓", "busy"), (FAILED, "x", "bad"),
        (DAMAGED, "!", "bad"), (WAITING, "░", "dim"))  # fmt: skip
_KINDS = {"proven": "good", "unproven": "odd", "failed": "bad", "damaged": "bad"}
_ASCII = str.maketrans("█▓░·…–°×", "#>.|~- x")
_LEAST_WIDTH, _MOST_VERDICT = 20, 3
_MOST_BAR = 100
_HEADS = "Devices", "shard", "use", "memory", "power", "temp", "limits", "name"
_REMARKS = _HEADS.index("limits")
_LABEL = 20
"""Columns that tell most devices apart: a short name of a node, and the begin of a UUID."""


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def clip(text: str, width: int) -> str:
    """As much of a text as fits; a cut is shown."""
    if cells(text) <= width:
        return text
    kept, room = [], width - 1
    for letter in text:
        room -= _cells(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + "…" if width > 0 else ""


def plain(line: Line) -> str:
    """A line without its styles."""
    return "".join(text for text, _ in line).rstrip()


def painted(line: Line) -> str:
    """A line with its styles, as a terminal takes them."""
    parts = [f"\x1b[{STYLES[s]}m{text}\x1b[0m" if STYLES[s] else text for text, s in line]
    return "".join(parts)


def ascii_only(text: str) -> str:
    """A line for a terminal that knows no other letters."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def rate(value: float) -> str:
    """Bytes a second for people."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6)):
        if value >= 0.1 * size:
            return (
                f"{value / size:.3g} {unit}"
                if value < 1000 * size
                else f"{value / size:.0f} {unit}"
            )
    return f"{value / 1e3:.3g} kB/s"


def left(seconds: float) -> str:
    """The time left, in the largest unit that leaves a figure above 1.5."""
    unit, size = next(
        (pair for pair in (("s", 1), ("min", 60), ("h", 3600)) if seconds < 90 * pair[1]),
        ("days", 86400),
    )
    if unit == "h" and seconds >= 36 * 3600:
        unit, size = "days", 86400
    return f"about {_figure(seconds / size)} {unit} left"


def _figure(value: float) -> str:
    """Two digits are enough."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2g}" if value >= 1 else f"{math.ceil(value * 10) / 10:.1g}"


def when_done(look: Look) -> str:
    """What is known of the end: a time, or why there is none."""
    waits = look.counts[RUNNING] + look.counts[WAITING]
    if look.ended:
        return "all is done"
    if look.seen.shards and not waits:
        bad = look.counts[FAILED] + look.counts[DAMAGED]
        return "what is left has to be run again" if bad else "all shards are done; the sum is next"
    if look.left is None:
        return f"time left unknown: {look.why}"
    end = any_clock(look.seen.at + look.left)
    far = look.left > 20 * 3600
    return f"{left(look.left)}, done about {end[:16] if far else end[11:16]}"


def summary(look: Look) -> str:
    """The counts in one line."""
    counts = look.counts
    words = [f"{counts[DONE]} of {len(look.seen.shards)} shards done"]
    words += [f"{counts[s]} {s}" for s in (RUNNING, FAILED, DAMAGED, WAITING) if counts[s]]
    speed = "" if look.rates.now is None else f"{rate(look.rates.now)}; "
    return f"{', '.join(words)}; {speed}{when_done(look)}"


def frame(look: Look, width: int, height: int | None = None) -> list[Line]:
    """The whole view.

    Parameters
    ----------
    width, height
        Of the terminal; None: as many lines as it takes.
    """
    width = max(width, _LEAST_WIDTH)
    head = [*_title(look, width), *_verdict(look, width)]
    if look.seen.shards:
        head += [[], *_progress(look, width)]
    room = None if height is None else height - len(head)
    lines = head + _sections(look, width, room)
    return lines if height is None else lines[:height]


def _title(look: Look, width: int) -> list[Line]:
    at = time.strftime("%H:%M:%S", time.localtime(look.seen.at))
    name = clip(f"shardwise · {one_line(str(look.seen.results.root))}", width - len(at) - 2)
    return [[(name, "bold"), (" " * (width - cells(name) - len(at)), ""), (at, "dim")]]


def _verdict(look: Look, width: int) -> list[Line]:
    wrapped = textwrap.wrap(
        one_line(look.verdict.words), width, max_lines=_MOST_VERDICT, placeholder=" …"
    )
    return [[(clip(text, width), _KINDS.get(look.verdict.kind, ""))] for text in wrapped]


def _progress(look: Look, width: int) -> list[Line]:
    share = look.done_bytes / look.all_bytes if look.all_bytes else 0.0
    percent = f" {math.floor(100 * share + 1e-9):3} %"
    bar = _bar(look.counts, min(width - len(percent) - 2, _MOST_BAR))
    states = [f"{look.counts[state]} {state}" for state, _, _ in _BAR]
    marks = [(f"{mark} {text}", style if look.counts[state] else "dim")
             for (state, mark, style), text in zip(_BAR, states, strict=True)]  # fmt: skip
    done = f"{human_bytes(int(look.done_bytes))} of {human_bytes(look.all_bytes)}"
    known = ((look.rates.now, "now", "bold"), (look.rates.overall, "overall", ""))
    speed = [(f"{rate(value)} {word}", style) for value, word, style in known if value is not None]
    speed.append((done, ""))
    end = [[(clip(text, width), "bold")] for text in textwrap.wrap(when_done(look), width)]
    return [
        [("[", "dim"), *bar, ("]", "dim"), (percent, "bold")],
        *_flow(marks, width), *_flow(speed, width), *end,
    ]  # fmt: skip


def _bar(counts: Mapping[str, int], width: int) -> Line:
    """Each state in its share; what there is of one is seen, however little."""
    total = sum(counts.values())
    sizes = {state: counts[state] * width // total for state, _, _ in _BAR}
    for state, size in sizes.items():
        sizes[state] = max(size, 1) if counts[state] else 0
    largest = max(sizes, key=lambda state: sizes[state])
    sizes[largest] += width - sum(sizes.values())
    return [(mark * sizes[state], style) for state, mark, style in _BAR if sizes[state] > 0]


def _flow(pieces: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Pieces beside each other, on as many lines as they need."""
    lines: list[Line] = []
    used = 0
    for text, style in pieces:
        if lines and used + 3 + cells(text) <= width:
            lines[-1] += [("   ", ""), (text, style)]
            used += 3 + cells(text)
        else:
            lines.append([(clip(text, width), style)])
            used = cells(text)
    return lines


# Sections: a title and entries of some lines each.


def _sections(look: Look, width: int, room: int | None) -> list[Line]:
    seen = look.seen
    devices = _devices(look, width)
    titled = [
        (devices[:1], [[line] for line in devices[1:]]),
        (_heading("Failed, the last first", width),
         [_failure(name, why, width) for name, why in failures(seen)]),
        (_heading("In quarantine", width), _notes(seen.quarantined, width)),
        (_heading("Remarks", width), _notes(seen.problems, width)),
    ]  # fmt: skip
    some = [(title, entries) for title, entries in titled if entries]
    shown = _fitted([entries for _, entries in some], room)
    lines: list[Line] = []
    for (title, entries), count in zip(some, shown, strict=True):
        lines += [[], *title, *(line for entry in entries[:count] for line in entry)]
        if more := len(entries) - count:
            lines.append([(f"  … and {more} more", "dim")])
    return lines


def _heading(text: str, width: int) -> list[Line]:
    return [[(clip(text, width), "bold")]]


def _notes(things: Iterable[object], width: int) -> list[list[Line]]:
    return [[[(clip(one_line(f"  {thing}"), width), "odd")]] for thing in things]


def _fitted(sections: Sequence[Sequence[Sequence[Line]]], room: int | None) -> list[int]:
    """How many entries of each section there is room for: the longest gives way first."""
    shown = [len(entries) for entries in sections]
    if room is not None:  # each entry has a line: of thousands, most are out of the question
        shown = [min(count, max(room, 1)) for count in shown]

    def tall(number: int) -> int:
        entries = sections[number]
        lines = sum(len(entry) for entry in entries[: shown[number]])
        return lines + 2 + (shown[number] < len(entries))

    while room is not None and shown and sum(map(tall, range(len(shown)))) > room:
        longest = max(range(len(shown)), key=tall)
        if shown[longest] <= 1:
            break
        shown[longest] -= 1
    return shown


def _failure(name: str, why: Any, width: int) -> list[Line]:
    text = one_line(f"{name}  {why.reason}")
    log = one_line(why.log or "none")
    one = f"  {text}  (log: {log})"
    if cells(one) <= width:
        return [[(one, "bad")]]
    return [[(clip(f"  {text}", width), "bad")], [(clip(f"    log: {log}", width), "dim")]]


def _devices(look: Look, width: int) -> list[Line]:
    """A table with as many columns as fit, those first that are worth most, under its heads."""
    rows = [_columns(row) for row in look.devices]
    if not rows:
        return []
    widths = [max(cells(row[n]) for row in rows) for n in range(len(_HEADS))]
    widths = [max(w, cells(head)) if w else 0 for w, head in zip(widths, _HEADS, strict=True)]
    shown, used = [], min(widths[0], _LABEL) + 2
    for number in range(1, len(widths)):
        if not widths[number]:
            continue
        if used + widths[number] + 2 > width:
            break
        shown.append(number)
        used += widths[number] + 2
    label = min(widths[0], width - sum(widths[n] + 2 for n in shown) - 2)

    def line(row: Sequence[str], style: str, begin: str = "  ") -> Line:
        text = begin + _padded(clip(row[0], label), label + 2 - len(begin))
        text += "".join(f"  {_padded(row[n], widths[n])}" for n in shown)
        return [(clip(text.rstrip(), width), style)]

    styles = ["odd" if row.shard is None or columns[_REMARKS] else ""
              for row, columns in zip(look.devices, rows, strict=True)]  # fmt: skip
    return [line(_HEADS, "bold", ""), *map(line, rows, styles)]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def _columns(row: Row) -> list[str]:
    """Who, shard, utilisation, memory, power, temperature, remarks, name: what matters first."""
    gauge = row.gauge
    used, whole = gauge.get("memory_bytes"), gauge.get("memory_total_bytes")
    memory = "" if used is None else f"{used / 2**30:.0f}"
    memory += f"/{whole / 2**30:.0f} GiB" if memory and whole else " GiB" if memory else ""
    remarks = [*(gauge.get("throttled") or [])]
    remarks += ["ECC errors"] if gauge.get("ecc_uncorrected") else []
    return [
        _label(row.device),
        _task(row),
        _told(gauge.get("utilisation"), 100, "%"),
        memory,
        _told(gauge.get("power_watts"), 1, "W"),
        _told(gauge.get("temperature_celsius"), 1, "°C"),
        one_line(", ".join(map(str, remarks)))[:60],
        one_line(row.device.name)[:40] if row.device and row.device.uuid else "",
    ]


def _told(value: float | None, scale: float, unit: str) -> str:
    return "" if value is None else f"{value * scale:3.0f} {unit}"


def _label(device: Device | None) -> str:
    """Node first: that is what people walk to."""
    if device is None:
        return "?"
    return one_line(f"{device.node} {device.uuid[:12] if device.uuid else device.name}")


def _task(row: Row) -> str:
    if row.shard is None:
        return f"idle {_short(row.since)}"
    done = "" if row.progress is None else f" {math.floor(100 * row.progress):3} %"
    return f"{one_line(row.shard)}{done} {_short(row.since)}".rstrip()


def _short(seconds: float | None) -> str:
    """A duration in few letters."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
