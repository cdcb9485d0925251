"""The ways in which a run is shown: in place in a terminal, as plain lines, or as JSON.

Text from files may hold anything. In a terminal all of it goes through `_text`, never through
markup, and no control character gets through.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from shardwise.errors import one_line
from shardwise.observe import status
from shardwise.observe.folder import Observer, read_command
from shardwise.observe.observation import DAMAGED, DONE, FAILED, RUNNING, WAITING
from shardwise.observe.status import Look, failures
from shardwise.units import any_clock, decimal, human_bytes, seconds

_LINE_SECONDS = 10.0
_OUTPUT_WIDTH = 200
_SHARE_OF_TIME = 4.0
"""After a look at a slow disk, the pause is at least this many times as long as the look."""

_MOST_SECONDS = 86400.0
"""The longest pause; some systems cannot sleep for longer."""

_LEAVE = Text("\nCtrl-C ends the watch, not the run", "dim")

_BAR = ((DONE, "█", "#", "green"), (RUNNING, "▓", ">", "cyan"), (FAILED, "x", "x", "red"),
        (DAMAGED, "!", "!", "red"), (WAITING, "░", ".", "dim"))  # fmt: skip
_STYLES = {"proven": "green", "unproven": "yellow", "failed": "red", "damaged": "red"}
_HEADS = "Devices", "shard", "name"
_NARROW, _MOST_BAR = 60, 100
_FEWEST_ROWS = 3


# A picture.


def when_done(look: Look) -> str:
    """When the run will be done, or why nobody can say."""
    if look.ended:
        return "all is done"
    if look.seen.shards and not look.counts[RUNNING] + look.counts[WAITING]:
        bad = look.counts[FAILED] + look.counts[DAMAGED]
        return "what is left has to be run again" if bad else "all shards are done; the sum is next"
    if look.left is None:
        return "time left unknown: nothing was done in the last minutes"
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
    """The whole view, in at most ``height`` lines; None: as many as it takes."""
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
    room = max(map(len, (look.devices, *(lines for _, lines in sections))))
    parted = len(sections) + bool(look.devices)
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
    """Any text as one line, cut at the edge of the terminal."""
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
    """The devices, with the most useful columns first."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    most = 2 if width < _NARROW else len(_HEADS)
    shown = [number for number in range(most) if any(row[number].plain for row in rows)]
    for number in shown:
        table.add_column(_HEADS[number], no_wrap=True)
    for row in rows:
        table.add_row(*(row[number] for number in shown))
    return table


def _columns(row: Mapping[str, Any]) -> list[Text]:
    """Device, shard, model."""
    done, since = row["progress"], row["seconds"]
    shard = row["shard"]
    shard += "" if done is None else f" {math.floor(100 * done):3} %"
    shard += "" if since is None else f" {seconds(since)}"
    device = f"  {row['node']} {(row['uuid'] or row['name'])[:12]}" if row["name"] else "?"
    return [_text(device), _text(shard), _text(row["name"][:40] if row["uuid"] else "")]


# The views.


class InPlace:
    """The whole terminal, redrawn at each look; the last picture stays when it ends."""

    def __init__(self) -> None:
        self._live = Live(console=_console(), screen=True, auto_refresh=False,
                          redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._last: Look | None = None

    def __enter__(self) -> "InPlace":
        """Take over the terminal."""
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Give the terminal back, and leave the last picture there."""
        with suppress(OSError, ValueError):  # the terminal may be gone, which does not matter
            self._live.stop()
            if self._last is not None:
                _show(self._last)

    def show(self, look: Look) -> None:
        """Draw a look, in the size that the terminal has now."""
        self._last, console = look, self._live.console
        self._live.update(Group(draw(look, console, console.height - 2), _LEAVE), refresh=True)


class Lines(AbstractContextManager["Lines"]):
    """A line when something has changed, but not too often; for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._news: tuple[object, ...] = ()
        self._failed: set[tuple[str, str]] = set()
        self._at: float | None = None
        self._last: Look | None = None

    def __exit__(self, *error: object) -> None:
        """Write the final state, however recent the last line is."""
        if self._last is not None and not any(error):
            self._write(self._last)
            _print(_ending(self._last))

    def show(self, look: Look) -> None:
        """Write a line, if it is time for one."""
        self._last = look
        if self._at is None or self._clock() - self._at >= _LINE_SECONDS:
            self._write(look)

    def _write(self, look: Look) -> None:
        failed = {(name, why.reason): why.log for name, why in failures(look.seen)}
        news = (look.verdict, *look.counts.items(), *look.seen.problems, *failed)
        if news == self._news:
            return
        lines = [summary(look) if look.seen.shards else look.headline]
        for name, reason in [key for key in reversed(failed) if key not in self._failed]:
            lines.append(f"failed: {name}: {reason} (log: {failed[name, reason] or 'none'})")
        if look.ended and look.seen.shards:
            lines.append(look.verdict.words)
        self._news, self._failed, self._at = news, set(failed), self._clock()
        at = time.strftime("%H:%M:%S", time.localtime(look.seen.at))
        _print(f"{at} {line}" for line in lines)


class Json(Lines):
    """One JSON object per look, each on a line of its own."""

    def __exit__(self, *error: object) -> None:
        """Write nothing at the end."""

    def show(self, look: Look) -> None:
        """Write a look."""
        _print([json.dumps(look.json())])


View = InPlace | Lines


def capable() -> bool:
    """Whether there is a terminal that can be drawn on in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def choose_view(as_json: bool) -> View:
    """Choose how standard output shows a run in progress."""
    return Json() if as_json else InPlace() if capable() else Lines()


def show_once(observer: Observer, as_json: bool) -> int:
    """Show the whole picture once, and the command to continue; return the exit code."""
    look = status.look(observer.look())
    if as_json:
        Json().show(look)
    else:
        _show(look)
    return look.code


def _show(look: Look) -> None:
    console = _console()
    console.print(draw(look, console))
    _print(_ending(look))


def follow(observer: Observer, view: View, interval: float, stay: bool = False) -> None:
    """Show a run until it has ended, or with ``stay`` for ever.

    ``interval`` is the time between two looks in seconds; it grows if looks take long.
    """
    with view:
        while True:
            began = time.monotonic()
            look = status.look(observer.look())
            view.show(look)
            if look.ended and not stay:
                return
            took = time.monotonic() - began
            time.sleep(min(max(interval, _SHARE_OF_TIME * took), _MOST_SECONDS))


def _ending(look: Look) -> list[str]:
    """The command to continue, if there is something left to do and a run has left the command."""
    command = "" if look.ended else read_command(look.seen.results)
    return ["If the run has ended, continue it with:", f"  {command}"] if command else []


def _console() -> Console:
    """Standard output, with the letters and the width that it has."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    width = None if capable() else shutil.get_terminal_size((_OUTPUT_WIDTH, 0)).columns
    return Console(file=sys.stdout, width=width, highlight=False)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    sys.stdout.flush()
