"""A run as it is shown: in place in a terminal, as lines that say what is new, or as JSON.

Text from files may hold anything. All of it goes through `_text` or `_write`, never through markup.
"""

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from shardwise.errors import one_line
from shardwise.observe.status import DONE, RUNNING, STATES, Status, look
from shardwise.units import clock, human_bytes, seconds

_PATIENCE_SECONDS = 30.0  # for a run that is about to begin
_SHARE_OF_TIME = 4.0  # a pause is this many times as long as the look before it, at least
_BAR, _MOST_ROWS, _OUTPUT_WIDTH = 60, 12, 200


def draw(seen: Status, most: int = _MOST_ROWS) -> Group:
    """The whole picture; each list has ``most`` entries at most."""
    parts: list[RenderableType] = [
        _text(f"shardwise {seen.results.root}  {clock(seen.at)[11:]}", "bold"),
        Text(one_line(seen.headline), "" if seen.code else "green"),
    ]
    if seen.shards:
        done, every = seen.bytes(DONE), max(seen.bytes(*STATES), 1)
        words = f"{seen.tally}, {done / every:.1%}, {human_bytes(done)} of {human_bytes(every)}"
        if seen.rate and seen.left:
            words += f", {human_bytes(seen.rate)}/s, about {seconds(seen.left)} left"
        parts += [ProgressBar(every, done, width=_BAR), Text(f"\n{words}")]  # no line of its own
    lists = {
        "At work": [
            f"{shard.shard} {seconds(max(0.0, seen.at - shard.started))}  {shard.device.label}"
            for shard in seen.of(RUNNING)
        ],
        "What failed, by cause": [*seen.causes()],
        "Remarks": seen.remarks,
    }
    for title, lines in lists.items():
        parts += ["", Text(title, "bold")] if lines else []
        parts += [_text(f"  {line}") for line in lines[:most]]
        parts += [Text(f"  and {len(lines) - most} more")] if len(lines) > most else []
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """Any text as one paragraph, whose words may be cut at the edge of the terminal."""
    return Text(one_line(text), style, overflow="fold")


def show(seen: Status, as_json: bool, picture: bool = True) -> None:
    """Show the whole picture, and how to continue if no run lives and something is left to do."""
    if as_json:
        return _write([json.dumps(seen.json())])
    if picture:
        _console().print(draw(seen))
    if seen.command and seen.code and not seen.living:
        _write(["To continue, once no run is at work:", f"  {seen.command}"])
    return None


def follow(root: Path, as_json: bool, interval: float | None) -> int:
    """Show a run until it has ended; return the exit code.

    ``interval`` is the time between two looks, by default 2 s, or 10 s for lines.
    """
    console, seen, told = _console(), None, set[str]()
    live = Live(console=console, screen=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False)  # fmt: skip
    in_place = console.is_terminal and not console.is_dumb_terminal and not as_json
    interval = interval or (2.0 if in_place or as_json else 10.0)
    patience, lived = time.monotonic() + _PATIENCE_SECONDS, False
    try:
        while True:
            began, seen = time.monotonic(), look(root, before=seen)
            lived |= bool(seen.living)
            if as_json:
                show(seen, as_json)
            elif in_place:
                live.start()
                live.update(draw(seen, max(3, console.height // 3 - 5)), refresh=True)
            else:
                lines = [*seen.causes(), seen.tally if seen.shards else seen.headline, *seen.damage]
                lines += [seen.verdict.words] * seen.over
                _write(f"{clock(seen.at)[11:]} {line}" for line in lines if line not in told)
                told = set(lines)
            if seen.over and (not seen.code or lived or began > patience):
                return seen.code
            pause = max(interval, _SHARE_OF_TIME * (time.monotonic() - began))
            time.sleep(min(pause, 3600.0))
    finally:
        live.stop()
        if seen and not as_json:
            show(seen, as_json, picture=in_place)  # the last picture stays


def _console() -> Console:
    """Standard output, with the width that it supports."""
    width = None if sys.stdout.isatty() else _OUTPUT_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False)


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    sys.stdout.flush()
