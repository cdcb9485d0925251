"""The ways in which a run is shown: in place in a terminal, as plain lines, or as JSON."""

import json
import logging
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

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

_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP)
_LEAVE = Text("\nq or Ctrl-C leaves; the run goes on", "dim")


class InPlace:
    """The whole terminal, drawn anew; the last picture stays behind."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._live: Live | None = None
        self._keys: list[Any] | None = None
        self._last: Look | None = None

    def __enter__(self) -> "InPlace":
        """Take the terminal. A new size, and Ctrl-Z, are acted on only while this waits."""
        with self._undo as stack:
            for number, act in zip(_SIGNALS, (self._draw, self._sleep), strict=True):
                stack.callback(signal.signal, number, signal.signal(number, act))
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
            stack.enter_context(_held_log())
            stack.callback(self._give_back)
            self._take()
            self._undo = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Give the terminal back, and leave the last picture there."""
        self._undo.close()
        if self._last is not None:
            with suppress(OSError):
                _show(self._last)

    def show(self, look: Look) -> None:
        """Draw it."""
        self._last = look
        self._draw()

    def wait(self, seconds: float) -> bool:
        """Wait, with an eye on the keyboard; False after q."""
        end = time.monotonic() + seconds
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            while self._keys:
                if not select.select([sys.stdin], [], [], max(0.0, end - time.monotonic()))[0]:
                    return True
                typed = os.read(sys.stdin.fileno(), 64)
                if b"q" in typed.lower():
                    return False
                if not typed:  # the keyboard is gone
                    break
            time.sleep(max(0.0, end - time.monotonic()))
            return True
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _draw(self, *signal: object) -> None:
        if self._live and self._last:
            console = self._live.console
            drawn = draw(self._last, console, console.height - 2)
            self._live.update(Group(drawn, _LEAVE), refresh=True)

    def _take(self) -> None:
        """Draw from now on; keys come one by one, and are not shown, while this is in front."""
        with suppress(OSError, ValueError, termios.error):
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                self._keys = termios.tcgetattr(sys.stdin)
                tty.setcbreak(sys.stdin)
        self._live = Live(console=_console(), screen=True, auto_refresh=False,
                          redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._live.start()

    def _give_back(self) -> None:
        # The terminal may be gone, which is no reason to fail.
        with suppress(OSError, ValueError):
            if self._live:
                self._live.stop()
        with suppress(OSError, ValueError, termios.error):
            if self._keys:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._keys)
        self._live = self._keys = None

    def _sleep(self, *signal_: object) -> None:
        """What Ctrl-Z does: the terminal is the shell's, until this goes on."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._draw()


class Lines:
    """A line when something has changed, not too often: for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: tuple[object, ...] = ()
        self._failed: set[tuple[str, str]] = set()
        self._at: float | None = None
        self._last: Look | None = None

    def __enter__(self) -> "Lines":
        """Take nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Tell the state at the end, however short ago the last line was."""
        if self._last is not None and not any(error):
            self._tell(self._last)
            _print(_ending(self._last))

    def show(self, look: Look) -> None:
        """A line, if it is time for one."""
        self._last = look
        if self._at is None or self._clock() - self._at >= _LINE_SECONDS:
            self._tell(look)

    def wait(self, seconds: float) -> bool:
        """Wait."""
        time.sleep(seconds)
        return True

    def _tell(self, look: Look) -> None:
        failed = [(name, why.reason, why.log) for name, why in status.failures(look.seen)]
        news = (look.verdict, *look.counts.items(), *look.seen.problems, *failed)
        if news == self._told:
            return
        self._told, self._at = news, self._clock()
        at = time.strftime("%H:%M:%S", time.localtime(look.seen.at))
        lines = [summary(look) if look.seen.shards else look.headline]
        for name, reason, log in reversed(failed):
            if (name, reason) not in self._failed:
                lines.append(f"failed: {name}: {reason} (log: {log or 'none'})")
        self._failed = {(name, reason) for name, reason, _ in failed}
        if look.ended and look.seen.shards:
            lines.append(look.verdict.words)
        _print(f"{at} {line}" for line in lines)


class Json(Lines):
    """One JSON object a look, each on a line of its own."""

    def __exit__(self, *error: object) -> None:
        """Nothing is left to say."""

    def show(self, look: Look) -> None:
        """Write it."""
        _print([json.dumps(look.json())])


def capable() -> bool:
    """Whether there is a terminal that can be drawn on in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def choose_view(as_json: bool) -> "InPlace | Lines":
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
    """Look at a results folder; meanwhile its metrics are served at ``(host, port)``, if given."""
    with ExitStack() as stack:
        if address is not None:
            from shardwise.observe import metrics  # here: who only looks needs no server

            port = stack.enter_context(metrics.serve(Observer(root), *address))
            log.info("metrics: http://%s:%d/metrics", address[0], port)
        yield Observer(root)


def follow(
    observer: Observer, view: "InPlace | Lines", interval: float, stay: bool = False
) -> None:
    """Show a run until it has ended, unless this is to stay, or until the user leaves.

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
            if not view.wait(min(max(interval, _SHARE_OF_TIME * took), _MOST_SECONDS)):
                return


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
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


@contextmanager
def _held_log() -> Iterator[None]:
    """Keep what is logged, which would spoil the picture, and tell it at the end."""
    root, held = logging.getLogger(), MemoryHandler(sys.maxsize, flushLevel=sys.maxsize)
    handlers, root.handlers = root.handlers, [held]
    try:
        yield
    finally:
        root.handlers = handlers
        for record in held.buffer:
            root.handle(record)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    sys.stdout.flush()
