"""Faults between this process and its disk: every call that changes a file passes through here.

`Calls` patches functions of the ``os`` module, and files that Python opens to write. It counts
their calls on files under one folder, from all threads, and lets a `Fault` decide what each call
does. It is meant for a forked child: the patches are never removed.
"""

import builtins
import contextlib
import errno
import io
import os
import secrets
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

_BY_PATH = ("unlink", "remove", "truncate", "utime", "mkdir", "rmdir", "chmod")
_BY_DESCRIPTOR = ("fsync", "fdatasync", "ftruncate", "posix_fallocate")
_WRITING = os.O_CREAT | os.O_WRONLY | os.O_RDWR
WRITES = ("write", "pwrite")
RENAMES = ("replace", "rename")


@dataclass
class Call:
    """One call that changes a file."""

    kind: str
    path: str
    do: Callable[[], Any]
    half: Callable[[], Any] | None = None
    span: tuple[int, int] = (0, 0)
    source: str = ""


Fault = Callable[[int, Call], Any]
"""Takes the number of a call and the call; returns or raises in its place."""


class Calls:
    """All calls that change files under a folder, from now on."""

    def __init__(self, folder: Path, fault: Fault) -> None:
        self._folder, self._fault = f"{os.path.realpath(folder)}/", fault
        self._lock, self.seen = threading.RLock(), []
        for name in ("open", *_BY_PATH, *_BY_DESCRIPTOR, *RENAMES, *WRITES):
            setattr(os, name, partial(self._called, name, getattr(os, name)))
        self._patch_open()

    def pass_on(self, call: Call) -> Any:
        """Do a call; if its file is under the folder, leave it to the fault."""
        if not call.path.startswith(self._folder):
            return call.do()
        with self._lock:
            number = len(self.seen)
            self.seen.append(call.kind)
            return self._fault(number, call)

    def _called(
        self, kind: str, real: Callable[..., Any], file: Any, *words: Any, **more: Any
    ) -> Any:
        """Stand in for a function of ``os``."""
        call = Call(kind, _path_of(file), partial(real, file, *words, **more))
        if kind == "open" and not words[0] & _WRITING:
            return call.do()
        if kind in WRITES:
            data, *place = words
            view = memoryview(data).cast("B")
            call.half = partial(real, file, view[: len(view) // 2], *place)
            call.span = place[0] if place else os.lseek(file, 0, os.SEEK_CUR), len(view)
        if kind in RENAMES:
            call.source, call.path = call.path, os.path.abspath(words[0])
        return self.pass_on(call)

    def _patch_open(self) -> None:
        real = io.open

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                return os.write(self.fileno(), data)

            def truncate(self, size: int | None = None) -> int:
                size = self.tell() if size is None else size
                os.ftruncate(self.fileno(), size)
                return size

        def python_open(
            file: Any, mode: str = "r", buffering: int = -1, *words: Any, opener: Any = None,
            **more: Any,
        ) -> Any:  # fmt: skip
            if not set(mode) & set("wax+") or "b" not in mode:  # logs are text
                return real(file, mode, buffering, *words, opener=opener, **more)
            opener = opener or partial(os.open, mode=0o666)
            raw = Raw(file, mode.replace("b", ""), opener=opener)
            if not buffering:
                return raw
            return (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)

        io.open = builtins.open = python_open


def _path_of(descriptor: Any) -> str:
    if not isinstance(descriptor, int):
        return os.path.abspath(descriptor)
    return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")


def die() -> NoReturn:
    """End this process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    raise AssertionError


def once(at: int, act: Callable[[Call], Any]) -> Fault:
    """A fault that does ``act`` at one call; all other calls are done as usual."""
    return lambda number, call: act(call) if number == at else call.do()


def terminated(call: Call) -> Any:
    """SIGTERM comes just before a call."""
    os.kill(os.getpid(), signal.SIGTERM)
    return call.do()


def _error(number: int, call: Call) -> OSError:
    """An error as Python raises it: for a call by descriptor it names no file."""
    named = call.kind not in (*_BY_DESCRIPTOR, *WRITES)
    return OSError(number, os.strerror(number), *([call.path] if named else []))


def failing(error: int, done: bool = False) -> Callable[[Call], NoReturn]:
    """Make a call fail; if ``done``, it takes effect all the same."""

    def act(call: Call) -> NoReturn:
        if done:
            call.do()
        raise _error(error, call)

    return act


def failing_from(at: int, error: int, kinds: tuple[str, ...]) -> Fault:
    """A fault that fails calls of some kinds from one call on, like a disk that stays full."""
    fail = failing(error)
    return lambda number, call: fail(call) if number >= at and call.kind in kinds else call.do()


def plain(call: Call) -> Any:
    """Fail like a disk that does not support the fsync of a folder."""
    if os.path.isdir(call.path):
        raise _error(errno.EINVAL, call)
    return call.do()


class Power:
    """The machine loses power before a call: what no fsync has covered is gone.

    Bytes that were written since the last fsync of their file read as zeros. Names that were made,
    changed or removed since the last fsync of their folder are as they were before.
    """

    def __init__(self, at: int, folder: Path, aside: Path) -> None:
        self.at, self._folder, self._aside = at, folder, aside
        self._bytes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._names: list[tuple[str, list[tuple[str, str]]]] = []
        self._replace, self._open, self._pwrite = os.replace, os.open, os.pwrite

    def __call__(self, number: int, call: Call) -> Any:
        """Do a call, and note which of its effects are not on the disk yet."""
        if number == self.at:
            self.cut()
        renames = [(call.path, call.source)] * bool(call.source)
        if call.source or call.kind == "unlink":
            kept = str(self._aside / secrets.token_hex(8))
            with contextlib.suppress(FileNotFoundError):
                os.link(call.path, kept)
                renames.append((kept, call.path))
            self._names.append((os.path.dirname(call.path), renames))
        done = call.do()
        if call.kind in WRITES:
            self._bytes[_identity(call.path)].append((call.span[0], done))
        elif call.kind == "fsync":
            self._bytes.pop(_identity(call.path), None)
            self._names = [pair for pair in self._names if pair[0] != call.path]
        return done

    def cut(self) -> NoReturn:
        """Undo what is not on the disk, then die."""
        for _, renames in reversed(self._names):
            with contextlib.suppress(FileNotFoundError):  # the renamed file is gone by now
                for old, new in renames:
                    self._replace(old, new)
        for path in self._folder.rglob("*"):
            for offset, length in self._bytes.get(_identity(str(path)), ()):
                descriptor = self._open(path, os.O_WRONLY)
                self._pwrite(descriptor, bytes(length), offset)
        die()


def _identity(path: str) -> int:
    return os.lstat(path).st_ino
