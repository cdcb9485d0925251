"""A look at a run, drawn by rich for a terminal.

What comes from files may hold anything: all of it goes through `_text`, never through markup, and
no character gets through that a terminal obeys.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from shardwise.errors import one_line
from shardwise.observe.observation import DAMAGED, DONE, FAILED, RUNNING, WAITING
from shardwise.observe.status import Look, failures
from shardwise.units import any_clock, decimal, human_bytes, seconds

_BAR = ((DONE, "█", "#", "green"), (RUNNING, "▓", ">", "cyan"), (FAILED, "x", "x", "red"),
        (DAMAGED, "!", "!", "red"), (WAITING, "░", ".", "dim"))  # fmt: skip
_STYLES = {"proven": "green", "unproven": "yellow", "failed": "red", "damaged": "red"}
_HEADS = "Devices", "shard", "use", "memory", "power", "temp", "limits", "name"
_NARROW, _WIDE, _MOST_BAR = 60, 110, 100
_FEWEST_ROWS = 3


def when_done(look: Look) -> str:
    """What is known of the end: a time, or why there is none."""
    if look.ended:
        return "all is done"
    if look.seen.shards and not look.counts[RUNNING] + look.counts[WAITING]:
        bad = look.counts[FAILED] + look.counts[DAMAGED]
        return "what is left has to be run again" if bad else "all shards are done; the sum is next"
    if look.left is None:
        return f"time left unknown: {look.why}"
    end = any_clock(look.seen.at + look.left)
    far = look.left > 20 * 3600
    return f"about {seconds(look.left)} left, done about {end[:16] if far else end[11:16]}"


def summary(look: Look) -> str:
    """The counts in one line."""
    words = [f"{look.counts[DONE]} of {len(look.seen.shards)} shards done"]
    words += [f"{n} {state}" for state, n in look.counts.items() if n and state != DONE]
    speed = "" if look.rate is None else f"{decimal(look.rate, 'B/s')}; "
    return f"{', '.join(words)}; {speed}{when_done(look)}"


def draw(look: Look, console: Console, height: int | None = None) -> SegmentLines:
    """The whole view, in no more lines than ``height``; None: as many as it takes."""
    seen, title = look.seen, Table.grid(expand=True)
    title.add_column(ratio=1, no_wrap=True)
    title.add_row(_text(f"shardwise {seen.results.root}", "bold"),
                  _text(any_clock(seen.at)[11:], "dim"))  # fmt: skip
    style = _STYLES.get(look.verdict.kind, "")
    parts: list[RenderableType] = [title, Text(one_line(look.headline), style)]
    if seen.shards:
        parts += ["", *_progress(look, console.width, console.options.ascii_only)]
    failed: list[RenderableType] = []
    for name, why in failures(seen):
        failed.append(_text(f"  {name}  {why.reason}", "red"))
        failed.append(_text(f"    log: {why.log or '-'}", "dim"))
    sections = [
        ("Failed, the last first", failed),
        ("In quarantine", [_text(f"  {entry}", "yellow") for entry in seen.quarantined]),
        ("Remarks", [_text(f"  {text}", "yellow") for text in seen.problems]),
    ]
    sections = [section for section in sections if section[1]]
    room, parted = len(look.devices) + len(failed), len(sections) + bool(look.devices)
    if height is not None:
        used = len(console.render_lines(Group(*parts))) + 3 * parted
        room = max(_FEWEST_ROWS, (height - used) // max(1, parted))
    if look.devices:
        rows = [_columns(row) for row in look.devices[:room]]
        parts += ["", _table(rows, console.width), *_more(len(look.devices) - room)]
    for name, lines in sections:
        parts += ["", _text(name, "bold"), *lines[:room], *_more(len(lines) - room)]
    return SegmentLines(console.render_lines(Group(*parts), pad=False)[:height], new_lines=True)


def _more(left_out: int) -> list[RenderableType]:
    return [_text(f"  and {left_out} more lines", "dim")] if left_out > 0 else []


def _text(text: str, style: str = "") -> Text:
    """One line of anything, cut where the terminal ends."""
    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


def _progress(look: Look, width: int, plain: bool) -> Iterable[RenderableType]:
    """The bar with the share that is done, the counts, the rate, and the end."""
    share = look.done_bytes / look.all_bytes if look.all_bytes else 0.0
    percent = f" {math.floor(100 * share + 1e-9):3} %"
    cells, total = min(max(width, 20) - len(percent) - 2, _MOST_BAR), sum(look.counts.values())
    sizes = {s: max(1, n * cells // total) if n else 0 for s, n in look.counts.items()}
    sizes[max(sizes, key=sizes.__getitem__)] += cells - sum(sizes.values())
    bar, legend = Text("[", no_wrap=True), []
    for state, mark, letter, style in _BAR:
        count, drawn = look.counts[state], letter if plain else mark
        bar.append(drawn * sizes[state], style)
        legend.append(Text(f"{drawn} {count} {state}", style if count else "dim"))
    yield bar.append("]").append(percent, "bold")
    yield Columns(legend, padding=(0, 3))
    speed = "" if look.rate is None else f"{decimal(look.rate, 'B/s')}   "
    yield Text(f"{speed}{human_bytes(int(look.done_bytes))} of {human_bytes(look.all_bytes)}")
    yield Text(when_done(look), "bold")


def _table(rows: Sequence[Sequence[Text]], width: int) -> Table:
    """The devices, with those columns first that are worth most."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    most = 2 if width < _NARROW else 6 if width < _WIDE else len(_HEADS)
    shown = [number for number in range(most) if any(row[number].plain for row in rows)]
    for number in shown:
        table.add_column(_HEADS[number], no_wrap=True)
    for row in rows:
        table.add_row(*(row[number] for number in shown))
    return table


def _columns(row: Mapping[str, Any]) -> list[Text]:
    """Who, shard, utilisation, memory, power, temperature, what limits it, name."""
    gauge, done, since = row["gauge"] or {}, row["progress"], row["seconds"]
    used, whole = gauge.get("memory_bytes"), gauge.get("memory_total_bytes")
    limits = [*(gauge.get("throttled") or []), *["ECC errors"] * bool(gauge.get("ecc_uncorrected"))]
    cells = [
        f"  {row['node']} {(row['uuid'] or row['name'])[:12]}" if row["name"] else "?",
        row["shard"] or "idle",
        _figure(gauge.get("utilisation"), 100, " %"),
        _figure(used, 2**-30, _figure(whole, 2**-30, " GiB", "/") or " GiB"),
        _figure(gauge.get("power_watts"), 1, " W"),
        _figure(gauge.get("temperature_celsius"), 1, " °C"),
        ", ".join(map(str, limits))[:60],
        row["name"][:40] if row["uuid"] else "",
    ]
    cells[1] += "" if done is None else f" {math.floor(100 * done):3} %"
    cells[1] += "" if since is None else f" {seconds(since)}"
    return [_text(cell, "yellow" if limits or row["shard"] is None else "") for cell in cells]


def _figure(value: float | None, scale: float, unit: str, before: str = "") -> str:
    return "" if value is None else f"{before}{value * scale:.0f}{unit}"
