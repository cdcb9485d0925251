"""The ways in which a run is shown: in place in a terminal, as plain lines, or as JSON.

Text from files may hold anything. All of it goes through `_text`, never through markup, and no
control character gets through.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shardwise.errors import one_line
from shardwise.observe.folder import Observer, read_command
from shardwise.observe.status import DAMAGED, DONE, FAILED, RUNNING, WAITING, ShardStatus, Status
from shardwise.units import any_clock, decimal, human_bytes, seconds

_LINE_SECONDS = 10.0
_OUTPUT_WIDTH = 200
_SHARE_OF_TIME = 4.0
"""After a look at a slow disk, the pause is at least this many times as long as the look."""

_MOST_SECONDS = 86400.0
"""The longest pause; some systems cannot sleep for longer."""

_STYLES = {"proven": "green", "unproven": "yellow", "failed": "red", "damaged": "red"}
_FEWEST_ROWS, _OTHER_ROWS, _BAR = 3, 14, 60


def when_done(seen: Status) -> str:
    """When the run will be done, or why nobody can say."""
    if seen.ended:
        return "all is done"
    if seen.shards and not seen.counts[RUNNING] + seen.counts[WAITING]:
        bad = seen.counts[FAILED] + seen.counts[DAMAGED]
        return "what is left has to be run again" if bad else "all shards are done; the sum is next"
    if seen.left is None:
        return "time left unknown: nothing was done in the last minutes"
    end, far = any_clock(seen.at + seen.left), seen.left > 20 * 3600
    return f"about {seconds(seen.left)} left, done about {end[:16] if far else end[11:16]}"


def summary(seen: Status) -> str:
    """The counts in one line."""
    return f"{_counts(seen)}; {_speed(seen)}{when_done(seen)}"


def _counts(seen: Status) -> str:
    words = [f"{seen.counts[DONE]} of {len(seen.shards)} shards done"]
    return ", ".join(words + [f"{n} {s}" for s, n in seen.counts.items() if n and s != DONE])


def _speed(seen: Status) -> str:
    return "" if seen.rate is None else f"{decimal(seen.rate, 'B/s')}; "


def draw(seen: Status, height: int | None = None) -> Group:
    """The whole view; with ``height`` each list has only the lines that this many leave for it."""
    parts: list[RenderableType] = [
        _text(f"shardwise {seen.results.root}  {any_clock(seen.at)[11:]}", "bold"),
        Text(one_line(seen.headline), _STYLES.get(seen.verdict.kind, "")),
    ]
    if seen.shards:
        share = math.floor(100 * seen.done_bytes / max(seen.all_bytes, 1) + 1e-9)
        amounts = f"{human_bytes(int(seen.done_bytes))} of {human_bytes(seen.all_bytes)}"
        bar = Table.grid()
        bar.add_row(ProgressBar(max(seen.all_bytes, 1), seen.done_bytes, width=_BAR), f" {share} %")
        parts += ["", bar, _text(_counts(seen)), _text(f"{_speed(seen)}{amounts}")]
        parts.append(_text(when_done(seen), "bold"))
    failed: list[RenderableType] = []
    for name, why in seen.failed:
        failed.append(_text(f"  {name}  {why.reason}", "red"))
        where = f"on {why.device} of {why.host}" if why.device else f"on {why.host}"
        failed.append(_text(f"    {where}, exit code {why.code}, log: {why.log or '-'}", "dim"))
    sections = {
        "At work": [_at_work(shard, seen.at) for shard in seen.running],
        "Failed, the last first": failed,
        "Remarks": [_text(f"  {text}", "yellow") for text in seen.problems],
    }
    sections = {name: lines for name, lines in sections.items() if lines}
    room = max(map(len, sections.values()), default=0)
    if height is not None and sections:
        room = max(_FEWEST_ROWS, (height - _OTHER_ROWS) // len(sections))
    for name, lines in sections.items():
        more = [_text(f"  and {len(lines) - room} more lines", "dim")] if len(lines) > room else []
        parts += ["", Text(name, "bold"), *lines[:room], *more]
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """Any text as one line, cut at the edge of the terminal."""
    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


def _at_work(shard: ShardStatus, at: float) -> Text:
    """A shard, how far it is, for how long, and on which device."""
    done = "" if shard.progress is None else f" {math.floor(100 * shard.progress):3} %"
    since = "" if shard.started is None else f" {seconds(max(0.0, at - shard.started))}"
    return _text(f"  {shard.shard}{done}{since}  {shard.device.label if shard.device else '?'}")


class InPlace:
    """The whole terminal, redrawn at each look; the last picture stays when it ends."""

    def __init__(self) -> None:
        self._live = Live(console=_console(), screen=True, auto_refresh=False,
                          redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._last: Status | None = None

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

    def show(self, seen: Status) -> None:
        """Draw a look, in the size that the terminal has now."""
        self._last = seen
        leave = Text("\nCtrl-C ends the watch, not the run", "dim")
        self._live.update(Group(draw(seen, self._live.console.height), leave), refresh=True)


class Lines(AbstractContextManager["Lines"]):
    """A line when something has changed, but not too often; for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, -math.inf
        self._told: set[str] = set()
        self._last: Status | None = None

    def __exit__(self, *error: object) -> None:
        """Write the final state, however recent the last line is."""
        if self._last is not None and not any(error):
            self._write(self._last)
            _print(_ending(self._last))

    def show(self, seen: Status) -> None:
        """Write a line, if it is time for one."""
        self._last = seen
        if self._clock() - self._at >= _LINE_SECONDS:
            self._write(seen)

    def _write(self, seen: Status) -> None:
        """What was not said before: the counts, each failure, the end."""
        news = {f"{sorted(seen.counts.items())}": summary(seen) if seen.shards else seen.headline}
        for name, why in reversed(seen.failed):
            line = f"failed: {name}: {why.reason} (log: {why.log or 'none'})"
            news[f"{line} {why.at}"] = line
        if seen.ended:
            news[seen.verdict.words] = seen.verdict.words
        lines = [line for key, line in news.items() if key not in self._told]
        if lines:
            self._told, self._at = set(news), self._clock()
            at = time.strftime("%H:%M:%S", time.localtime(seen.at))
            _print(f"{at} {line}" for line in lines)


class Json(Lines):
    """One JSON object per look, each on a line of its own."""

    def __exit__(self, *error: object) -> None:
        """Write nothing at the end."""

    def show(self, seen: Status) -> None:
        """Write a look."""
        _print([json.dumps(seen.json())])


View = InPlace | Lines


def capable() -> bool:
    """Whether there is a terminal that can be drawn on in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def choose_view(as_json: bool) -> View:
    """Choose how standard output shows a run in progress."""
    return Json() if as_json else InPlace() if capable() else Lines()


def show_once(observer: Observer, as_json: bool) -> int:
    """Show the whole picture once, and the command to continue; return the exit code."""
    seen = observer.look()
    if as_json:
        Json().show(seen)
    else:
        _show(seen)
    return seen.code


def _show(seen: Status) -> None:
    _console().print(draw(seen))
    _print(_ending(seen))


def follow(observer: Observer, view: View, interval: float, stay: bool = False) -> None:
    """Show a run until it has ended, or with ``stay`` for ever.

    ``interval`` is the time between two looks in seconds; it grows if looks take long.
    """
    with view:
        while True:
            began = time.monotonic()
            seen = observer.look()
            view.show(seen)
            if seen.ended and not stay:
                return
            took = time.monotonic() - began
            time.sleep(min(max(interval, _SHARE_OF_TIME * took), _MOST_SECONDS))


def _ending(seen: Status) -> Iterator[str]:
    """The command to continue, if there is something left to do and a run has left the command."""
    if not seen.ended and (command := read_command(seen.results)):
        yield from ("If the run has ended, continue it with:", f"  {command}")


def _console() -> Console:
    """Standard output, with the letters and the width that it has."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    width = None if capable() else shutil.get_terminal_size((_OUTPUT_WIDTH, 0)).columns
    return Console(file=sys.stdout, width=width, highlight=False)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    sys.stdout.flush()
