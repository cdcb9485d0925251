"""The ways in which a run is shown: in place in a terminal, as plain lines, or as JSON."""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from shardwise.errors import one_line
from shardwise.observe import frame, pace, terminal
from shardwise.observe.folder import Observer
from shardwise.observe.pace import Look

_LINE_SECONDS = 10.0
_OUTPUT_WIDTH = 200
_SHARE_OF_TIME = 4.0
"""A look at a slow disk takes its time; so much longer is the pause after it, at least."""


_MOST_SECONDS = 86400.0
"""Nobody waits longer for the next look, and some systems cannot."""


class View(AbstractContextManager, Protocol):
    """Shows one look after the other."""

    def show(self, look: Look) -> None:
        """Show what is new."""

    def wait(self, seconds: float) -> bool:
        """Wait for the next look; False where the user wants no more."""


class InPlace:
    """The whole terminal, drawn anew; the last picture stays behind."""

    def __init__(self) -> None:
        self._screen = terminal.Screen()
        self._last: Look | None = None

    def __enter__(self) -> "InPlace":
        """Take the terminal."""
        self._screen.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Give the terminal back, and leave the last picture there."""
        self._screen.__exit__()
        if self._last is not None:
            with contextlib.suppress(OSError):
                snapshot(self._last)

    def show(self, look: Look) -> None:
        """Draw it."""
        self._last = look
        self._draw()

    def wait(self, seconds: float) -> bool:
        """Wait, with an eye on the keyboard and on the size."""
        return self._screen.wait(seconds, self._draw)

    def _draw(self) -> None:
        if self._last is not None:
            width, height = self._screen.size
            self._screen.draw(_lines(self._last, width, height))


class Lines:
    """A line when something has changed, not too often: for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: tuple[object, ...] = ()
        self._failed: set[tuple[str, str]] = set()
        self._at: float | None = None
        self._last: Look | None = None

    def __enter__(self) -> "Lines":
        """Nothing has to be taken."""
        return self

    def __exit__(self, *error: object) -> None:
        """The state at the end is told, however short ago the last line was."""
        if self._last is not None and not any(error):
            self._tell(self._last)

    def show(self, look: Look) -> None:
        """A line, if it is time for one."""
        self._last = look
        now = self._clock()
        if self._at is None or now - self._at >= _LINE_SECONDS:
            self._tell(look)

    def wait(self, seconds: float) -> bool:
        """Wait."""
        time.sleep(seconds)
        return True

    def _tell(self, look: Look) -> None:
        failed = [(name, why.reason, why.log) for name, why in pace.failures(look.seen)]
        news = (look.verdict, *look.counts.items(), *look.seen.problems, *failed)
        if news == self._told:
            return
        self._told, self._at = news, self._clock()
        at = time.strftime("%H:%M:%S", time.localtime(look.seen.at))
        lines = [frame.summary(look) if look.seen.shards else look.verdict.words]
        for name, reason, log in reversed(failed):
            if (name, reason) not in self._failed:
                lines.append(f"failed: {name}: {reason} (log: {log or 'none'})")
        self._failed = {(name, reason) for name, reason, _ in failed}
        if look.ended and look.seen.shards:
            lines.append(look.verdict.words)
        _print(f"{at} {one_line(line)}" for line in lines)


class Json(Lines):
    """One JSON object a look, each on a line of its own."""

    def __exit__(self, *error: object) -> None:
        """Nothing is left to say."""

    def show(self, look: Look) -> None:
        """Write it."""
        _print([json.dumps(look.json())])


def snapshot(look: Look) -> None:
    """The whole picture as text, once."""
    width = shutil.get_terminal_size((_OUTPUT_WIDTH, 0)).columns
    _print(_lines(look, width - 1 if terminal.capable() else width, None))


def follow(observer: Observer, view: View, interval: float, stay: bool = False) -> None:
    """Show a run until it has ended, or the user leaves.

    Parameters
    ----------
    interval
        Seconds between two looks; more where a look takes long.
    stay
        Go on after the end of the run.
    """
    with view:
        while True:
            began = time.monotonic()
            look = pace.look(observer.look())
            view.show(look)
            if look.ended and not stay:
                return
            took = time.monotonic() - began
            if not view.wait(min(max(interval, _SHARE_OF_TIME * took), _MOST_SECONDS)):
                return


def _lines(look: Look, width: int, height: int | None) -> list[str]:
    """A frame as this terminal takes it."""
    paint = frame.painted if terminal.colourful() else frame.plain
    return [_encodable(paint(line)) for line in frame.frame(look, width, height)]


def _encodable(text: str) -> str:
    """A text without what the output has no letters for."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return frame.ascii_only(text)
    return text


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{_encodable(line)}\n" for line in lines))
    sys.stdout.flush()
