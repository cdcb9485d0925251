"""A run as it is shown: in place in a terminal, as lines that say what is new, or as JSON.

Text from files may hold anything. All of it goes through `_text` or `_write`, never through markup.
"""

import json
import math
import sys
import time
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shardwise.errors import one_line
from shardwise.observe.observer import Observer, read_command
from shardwise.observe.status import Status
from shardwise.units import clock, human_bytes, seconds

_PATIENCE_SECONDS = 30.0  # for a run that is about to begin
_LONGEST_SECONDS = 86400.0  # some systems cannot sleep for longer
_SHARE_OF_TIME = 4.0  # a pause is this many times as long as the look before it, at least
_STYLES = {"proven": "green", "unproven": "yellow", "failed": "red", "damaged": "red"}
_BAR, _MOST_ROWS, _OUTPUT_WIDTH = 60, 12, 200


def draw(seen: Status, most: int = _MOST_ROWS) -> Group:
    """The whole picture; each list has ``most`` entries at most."""
    parts: list[RenderableType] = [
        _text(f"shardwise {seen.results.root}  {clock(seen.at)[11:]}", "bold"),
        Text(one_line(seen.headline), _STYLES.get(seen.verdict.kind, "")),
    ]
    if seen.shards:
        every, bar = max(seen.all_bytes, 1), Table.grid(padding=(0, 1))
        share = f"{math.floor(100 * seen.done_bytes / every + 1e-9)} %"
        amounts = f"{human_bytes(seen.done_bytes)} of {human_bytes(seen.all_bytes)}"
        bar.add_row(ProgressBar(every, seen.done_bytes, width=_BAR), f"{share}, {amounts}")
        parts += ["", bar, Text(seen.counts_line)]
    busy = [
        f"{shard.shard} {seconds(max(0.0, seen.at - shard.started))}  {shard.device.label}"
        for shard in seen.running
    ]
    failed = [
        f"{name}  {why.reason}\n  on {f'{why.device} of ' * bool(why.device)}{why.host}, "
        f"exit code {why.code}, log: {why.log or '-'}"
        for name, why in seen.failed
    ]
    lists: tuple[tuple[str, Sequence[str], str], ...] = (
        ("At work", busy, ""),
        ("Failed, the latest first", failed, "red"),
        ("Remarks", seen.problems, "yellow"),
    )
    for title, lines, style in lists:
        parts += ["", Text(title, "bold")] if lines else []
        parts += [_text(f"  {row}", style) for row in "\n".join(lines[:most]).split("\n") if row]
        parts += [Text(f"  and {len(lines) - most} more", "dim")] if len(lines) > most else []
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """Any text as one line, cut at the edge of the terminal."""
    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


def show_once(observer: Observer, as_json: bool) -> int:
    """Show the whole picture, and the command to continue; return the exit code."""
    seen = observer.look()
    _show(seen, as_json)
    return seen.code


def _show(seen: Status, as_json: bool) -> None:
    if not as_json:
        _console().print(draw(seen))
    _write([json.dumps(seen.json())] if as_json else _ending(seen))


def news(seen: Status) -> dict[str, str]:
    """The lines to tell, by a key that leaves out the rate and the time left: a new key is news."""
    lines = [f"failed: {name}: {why.reason} (log: {why.log})" for name, why in seen.failed]
    lines += [seen.counts_line or seen.headline]
    lines += [seen.verdict.words] * seen.over
    return {line.partition(";")[0]: line for line in lines}


def follow(observer: Observer, as_json: bool, interval: float | None, stay: bool = False) -> int:
    """Show a run until it has ended, or with ``stay`` forever; return the exit code.

    ``interval`` is the time between two looks in seconds; it grows if looks take long. If None,
    that is 2 s for a terminal or JSON, and 10 s for lines written to a pipe.
    """
    console, seen, told = _console(), None, set[str]()
    live = Live(console=console, screen=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False)  # fmt: skip
    in_place = console.is_terminal and not console.is_dumb_terminal and not as_json
    interval = interval or (2.0 if in_place or as_json else 10.0)
    patience, lived = time.monotonic() + _PATIENCE_SECONDS, False
    try:
        while True:
            began, seen = time.monotonic(), observer.look()
            lived |= bool(seen.living)
            if as_json:
                _show(seen, as_json)
            elif in_place:
                live.start()
                leave = Text("Ctrl-C ends the watch, not the run", "dim")
                live.update(Group(leave, draw(seen, max(3, console.height // 3 - 5))), refresh=True)
            else:
                new, at = news(seen), clock(seen.at)[11:]
                _write(f"{at} {line}" for key, line in new.items() if key not in told)
                told = set(new)
            known = seen.ended or lived or began > patience
            if seen.over and known and not stay:
                return seen.code
            pause = max(interval, _SHARE_OF_TIME * (time.monotonic() - began))
            time.sleep(min(pause, _LONGEST_SECONDS))
    finally:
        live.stop()
        if seen and in_place:  # the last picture stays
            _show(seen, as_json)
        elif seen and not as_json:
            _write(_ending(seen))


def _ending(seen: Status) -> list[str]:
    """The command to continue, if there is something left to do and a run has left the command."""
    command = "" if seen.ended or seen.living else read_command(seen.results)
    begin = "Continue it with:" if seen.stopped else "If the run has ended, continue it with:"
    return [begin, f"  {command}"] if command else []


def _console() -> Console:
    """Standard output, with the width that it supports."""
    width = None if sys.stdout.isatty() else _OUTPUT_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False)


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    sys.stdout.flush()
