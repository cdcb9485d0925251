"""A terminal that is drawn on in place, and left as it was found. Standard library only."""

import contextlib
import logging
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT = b"qQ"


def capable() -> bool:
    """Whether there is a terminal that can be drawn on in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def colourful() -> bool:
    """Whether colours are wanted (https://no-color.org) and there is a terminal for them."""
    return capable() and not os.environ.get("NO_COLOR")


class Screen(AbstractContextManager):
    """The whole terminal, for as long as it lasts; what was there before comes back at the end.

    What is logged meanwhile would spoil the picture, and is told at the end.
    """

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._keys: int | None = None
        self._found: list[Any] | None = None
        self._wake = -1

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows. The last column is never used: terminals differ in what follows."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns, rows = 80, 24
        return (columns or 80) - 1, rows or 24

    def __enter__(self) -> "Screen":
        """Take the terminal."""
        try:
            self._undo.enter_context(_held_log())
            self._undo.enter_context(self._signals())
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Give the terminal back."""
        try:
            self._give_back()
        finally:
            self._undo.close()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, each of which fits, and nothing else."""
        _write(_HOME + "\r\n".join(line + _REST_OF_LINE for line in lines) + _REST)

    def wait(self, seconds: float, redraw: Callable[[], Any]) -> bool:
        """Wait; False where the user wants to leave. It is drawn anew when the size changes."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            keys = [self._keys] if self._keys is not None else []
            ready, _, _ = select.select([self._wake, *keys], [], [], remaining)
            if self._wake in ready:
                if signal.SIGTSTP in os.read(self._wake, 4096):
                    self._stop()
                redraw()
            if self._keys in ready and not self._read_keys():
                return False
        return True

    def _read_keys(self) -> bool:
        try:
            typed = os.read(self._keys, 1024)  # type: ignore[arg-type]
        except OSError:
            typed = b""
        if not typed:  # nobody is there any more
            self._keys = None
        return not set(typed) & set(_QUIT)

    def _take(self) -> None:
        """Draw from now on; keys come one by one, and are not shown, while it is in front."""
        self._keys = None
        with contextlib.suppress(OSError, ValueError, termios.error):
            keyboard = sys.stdin.fileno()
            if os.isatty(keyboard) and os.tcgetpgrp(keyboard) == os.getpgrp():
                self._found = termios.tcgetattr(keyboard)
                tty.setcbreak(keyboard)
                self._keys = keyboard
        _write(_ENTER)

    def _give_back(self) -> None:
        # The terminal may be gone, which is no reason to fail.
        with contextlib.suppress(OSError, ValueError, termios.error):
            _write(_LEAVE)
        with contextlib.suppress(OSError, ValueError, termios.error):
            if self._found is not None:
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._found)
        self._found = None

    def _stop(self) -> None:
        """What Ctrl-Z does: the terminal is the shell's, until this goes on."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """A change of the size, and Ctrl-Z, end a wait. Others do what they did."""
        self._wake, told = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(told, False)
        numbers = (signal.SIGWINCH, signal.SIGTSTP)
        before = {number: signal.signal(number, _noted) for number in numbers}
        descriptor = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(told)


def _noted(signum: int, frame: FrameType | None) -> None:
    """The number of the signal is read from the pipe: nothing happens amid a drawing."""


@contextmanager
def _held_log() -> Iterator[None]:
    """Keep what is logged, and tell it at the end."""
    root, held = logging.getLogger(), _Held()
    handlers, root.handlers = root.handlers, [held]
    try:
        yield
    finally:
        root.handlers = handlers
        for record in held.records:
            root.handle(record)


class _Held(logging.Handler):
    """Keeps the last records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records = [*self.records[-99:], record]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
