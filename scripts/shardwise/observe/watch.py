"""The ways in which a run is shown: in place in a terminal, as plain lines, or as JSON."""

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shardwise.errors import IntegrityError, one_line
from shardwise.files import small
from shardwise.observe import status
from shardwise.observe.drawing import draw, summary
from shardwise.observe.folder import Observer
from shardwise.observe.status import Look

log = logging.getLogger(__name__)

_LINE_SECONDS = 10.0
_OUTPUT_WIDTH = 200
_SHARE_OF_TIME = 4.0
"""A look at a slow disk takes its time; so much longer is the pause after it, at least."""

_MOST_SECONDS = 86400.0
"""Nobody waits longer for the next look, and some systems cannot."""

_LEAVE = Text("\nCtrl-C leaves; the run goes on", "dim")


class InPlace:
    """The whole terminal, drawn anew; the last picture stays behind."""

    def __init__(self) -> None:
        self._live = Live(console=_console(), screen=True, auto_refresh=False,
                          redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._last: Look | None = None

    def __enter__(self) -> "InPlace":
        """Take the terminal; draw in a new size, and let Ctrl-Z give it to the shell meanwhile."""
        signal.signal(signal.SIGWINCH, lambda *_: self._draw())
        signal.signal(signal.SIGTSTP, self._sleep)
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Give the terminal back, and leave the last picture there."""
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError, ValueError):  # the terminal may be gone, which is no failure
            self._live.stop()
            if self._last is not None:
                _show(self._last)

    def show(self, look: Look) -> None:
        """Draw it."""
        self._last = look
        self._draw()

    def _draw(self) -> None:
        if self._last:
            console = self._live.console
            drawn = draw(self._last, console, console.height - 2)
            self._live.update(Group(drawn, _LEAVE), refresh=True)

    def _sleep(self, *_: object) -> None:
        self._live.stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._live.start()
        self._draw()


class Lines:
    """A line when something has changed, not too often: for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._news: tuple[object, ...] = ()
        self._failed: set[tuple[str, str]] = set()
        self._at: float | None = None
        self._last: Look | None = None

    def __enter__(self) -> "Lines":
        """Take nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Write the state at the end, however short ago the last line was."""
        if self._last is not None and not any(error):
            self._write(self._last)
            _print(_ending(self._last))

    def show(self, look: Look) -> None:
        """A line, if it is time for one."""
        self._last = look
        if self._at is None or self._clock() - self._at >= _LINE_SECONDS:
            self._write(look)

    def _write(self, look: Look) -> None:
        failed = {(name, why.reason): why.log for name, why in status.failures(look.seen)}
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
    """One JSON object a look, each on a line of its own."""

    def __exit__(self, *error: object) -> None:
        """Nothing is left to say."""

    def show(self, look: Look) -> None:
        """Write it."""
        _print([json.dumps(look.json())])


View = InPlace | Lines


def capable() -> bool:
    """Whether there is a terminal that can be drawn on in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def choose_view(as_json: bool) -> View:
    """How standard output shows a run that goes on."""
    return Json() if as_json else InPlace() if capable() else Lines()


def show_once(observer: Observer, as_json: bool) -> int:
    """Show the whole picture once, and the command that goes on; return the exit code."""
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


@contextmanager
def served(root: Path, address: tuple[str, int] | None) -> Iterator[Observer]:
    """Look at a results folder; meanwhile the last look is served at ``(host, port)``, if given."""
    observer = Observer(root)
    with ExitStack() as stack:
        if address is not None:
            from shardwise.observe import metrics  # here: who only looks needs no server

            port = stack.enter_context(metrics.serve(lambda: observer.last, *address))
            log.info("metrics: http://%s:%d/metrics", address[0], port)
        yield observer


def follow(observer: Observer, view: View, interval: float, stay: bool = False) -> None:
    """Show a run until it has ended, unless this is to stay.

    ``interval`` are the seconds between two looks; more where a look takes long.
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


def _ending(look: Look) -> Iterator[str]:
    """The command that goes on, where there is something left to do and a run has left it."""
    if look.ended:
        return
    with suppress(IntegrityError):
        command = small.read(look.seen.results.command, follow=False)
        if command:
            yield "To go on where the run has ended:"
            yield f"  {command.decode(errors='replace').strip()}"


def _console() -> Console:
    """Standard output, whatever letters and width it has."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    width = None if capable() else shutil.get_terminal_size((_OUTPUT_WIDTH, 0)).columns
    return Console(file=sys.stdout, width=width, highlight=False)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    sys.stdout.flush()
