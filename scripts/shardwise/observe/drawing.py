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
from shardwise.units import any_clock, decimal, human_bytes

_BAR = ((DONE, "█", "#", "green"), (RUNNING, "▓", ">", "cyan"), (FAILED, "x", "x", "red"),
        (DAMAGED, "!", "!", "red"), (WAITING, "░", ".", "dim"))  # fmt: skip
_STYLES = {"proven": "green", "unproven": "yellow", "failed": "red", "damaged": "red"}
_HEADS = "Devices", "shard", "use", "memory", "power", "temp", "limits", "name"
_UNITS = (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 86400), ("days", 86400, 0))
_LEAST_WIDTH, _MOST_BAR = 20, 100


def duration(seconds: float) -> str:
    """Two digits, in the largest unit that leaves more than 1.5 of it."""
    unit, size = next((u for u in _UNITS if seconds < 1.5 * u[2]), _UNITS[-1])[:2]
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 10 else f"{max(value, 0.1):.2g} {unit}"


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
    return f"about {duration(look.left)} left, done about {end[:16] if far else end[11:16]}"


def summary(look: Look) -> str:
    """The counts in one line."""
    counts = look.counts
    words = [f"{counts[DONE]} of {len(look.seen.shards)} shards done"]
    words += [f"{counts[s]} {s}" for s in (RUNNING, FAILED, DAMAGED, WAITING) if counts[s]]
    speed = "" if look.rate is None else f"{decimal(look.rate, 'B/s')}; "
    return f"{', '.join(words)}; {speed}{when_done(look)}"


def draw(look: Look, console: Console, height: int | None = None) -> SegmentLines:
    """The whole view, in no more lines than ``height``; None: as many as it takes."""
    seen, plain = look.seen, console.options.ascii_only
    title = Table.grid(expand=True)
    title.add_column(ratio=1, no_wrap=True)
    title.add_column()
    title.add_row(_text(f"shardwise {seen.results.root}", "bold"),
                  _text(any_clock(seen.at)[11:], "dim"))  # fmt: skip
    parts: list[RenderableType] = [title, Text(one_line(look.headline), _style(look))]
    if seen.shards:
        parts += ["", *_progress(look, max(console.width, _LEAST_WIDTH), plain)]
    failed = [
        Group(_text(f"  {name}  {why.reason}", "red"), _text(f"    log: {why.log or '-'}", "dim"))
        for name, why in failures(seen)
    ]
    sections = [
        ("Failed, the last first", failed, 2),
        ("In quarantine", [_text(f"  {entry}", "yellow") for entry in seen.quarantined], 1),
        ("Remarks", [_text(f"  {text}", "yellow") for text in seen.problems], 1),
    ]
    sections = [section for section in sections if section[1]]
    room = None
    if height is not None:
        used = len(console.render_lines(Group(*parts)))
        room = height - used - 3 * (len(sections) + bool(look.devices))
    wanted = [len(look.devices), *(len(entries) * lines for _, entries, lines in sections)]
    shown = _fitted(wanted, room)
    if look.devices:
        parts += ["", _table([_columns(row) for row in look.devices[: shown[0]]], console.width),
                  *_more(len(look.devices) - shown[0])]  # fmt: skip
    for (title_, entries, lines), share in zip(sections, shown[1:], strict=True):
        count = max(1, share // lines)
        parts += ["", _text(title_, "bold"), *entries[:count], *_more(len(entries) - count)]
    return SegmentLines(console.render_lines(Group(*parts), pad=False)[:height], new_lines=True)


def _more(left_out: int) -> list[RenderableType]:
    return [_text(f"  and {left_out} more", "dim")] if left_out else []


def _text(text: str, style: str = "") -> Text:
    """One line of anything, cut where the terminal ends."""
    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


def _style(look: Look) -> str:
    return _STYLES.get(look.verdict.kind, "")


def _progress(look: Look, width: int, plain: bool) -> Iterable[RenderableType]:
    """The bar with the share that is done, the counts, the rate, and the end."""
    share = look.done_bytes / look.all_bytes if look.all_bytes else 0.0
    percent = f" {math.floor(100 * share + 1e-9):3} %"
    bar = Text("[", no_wrap=True)
    cells, total = min(width - len(percent) - 2, _MOST_BAR), sum(look.counts.values())
    sizes = {s: max(1, n * cells // total) if n else 0 for s, n in look.counts.items()}
    largest = max(sizes, key=lambda state: sizes[state])
    sizes[largest] += cells - sum(sizes.values())
    for state, mark, letter, style in _BAR:
        bar.append((letter if plain else mark) * sizes[state], style)
    yield bar.append("]").append(percent, "bold")
    yield Columns(
        [Text(f"{letter if plain else mark} {look.counts[state]} {state}",
              style if look.counts[state] else "dim") for state, mark, letter, style in _BAR],
        padding=(0, 3),
    )  # fmt: skip
    speed = "" if look.rate is None else f"{decimal(look.rate, 'B/s')}   "
    yield Text(f"{speed}{human_bytes(int(look.done_bytes))} of {human_bytes(look.all_bytes)}")
    yield Text(when_done(look), "bold")


def _fitted(counts: Sequence[int], room: int | None) -> list[int]:
    """How many lines of each section there is room for; short sections keep all of theirs."""
    shown = list(counts)
    for place, number in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        if room is not None:
            shown[number] = min(counts[number], max(1, room // (len(counts) - place)))
            room -= shown[number]
    return shown


def _table(rows: Sequence[Sequence[Text]], width: int) -> Table:
    """The devices, with as many columns as fit, those first that are worth most."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    shown, used = [], 0
    for number, head in enumerate(_HEADS):
        widest = max(row[number].cell_len for row in rows)
        used += max(widest, len(head)) + 2 if widest else 0
        if number > 1 and used > width + 2:
            break
        if widest:
            shown.append(number)
            # Only the name of the device is cut where the terminal is narrow.
            table.add_column(head, no_wrap=True, min_width=widest if number else None)
    for row in rows:
        table.add_row(*(row[number] for number in shown))
    return table


def _columns(row: Mapping[str, Any]) -> list[Text]:
    """Who, shard, utilisation, memory, power, temperature, what limits it, name."""
    gauge, shard, done, since = (row[key] for key in ("gauge", "shard", "progress", "seconds"))
    gauge = gauge or {}
    used, whole = gauge.get("memory_bytes"), gauge.get("memory_total_bytes")
    memory = "" if used is None else f"{used / 2**30:.0f}{f'/{whole / 2**30:.0f}' if whole else ''}"
    limits = [*(gauge.get("throttled") or []), *["ECC errors"] * bool(gauge.get("ecc_uncorrected"))]
    task = "idle" if shard is None else shard
    task += "" if done is None else f" {math.floor(100 * done):3} %"
    task += "" if since is None else f" {duration(since)}"
    cells = [
        f"  {row['node']} {(row['uuid'] or row['name'])[:12]}" if row["name"] else "?",
        task,
        _figure(gauge.get("utilisation"), 100, "%"),
        memory and f"{memory} GiB",
        _figure(gauge.get("power_watts"), 1, "W"),
        _figure(gauge.get("temperature_celsius"), 1, "°C"),
        ", ".join(map(str, limits))[:60],
        row["name"][:40] if row["uuid"] else "",
    ]
    return [_text(cell, "yellow" if limits or shard is None else "") for cell in cells]


def _figure(value: float | None, scale: float, unit: str) -> str:
    return "" if value is None else f"{value * scale:.0f} {unit}"
