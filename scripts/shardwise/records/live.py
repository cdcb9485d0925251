"""What a task at work says of itself, for who watches from another machine: a small file per shard.

It is first written when the shard has taken a second, renewed every two, and removed at the end.
One that is no longer renewed is of a task that was killed: `Observer` reads it. Nothing that goes
wrong here harms a shard: where the file cannot be written there is none.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from shardwise.files.commit import temporary_for
from shardwise.files.paths import make_folder

SCHEMA = 1

_FIRST, _RENEWED = 1.0, 2.0  # seconds until the file is first written, and then renewed
_PATIENCE = 5.0  # seconds for the last write, should the disk hang


class AtWork(AbstractContextManager["AtWork"]):
    """A thread beside a shard at work, which says how far that is.

    The live file `path` says `facts`, and how many matrices are `done`.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], done: Callable[[], float]) -> None:
        self._path, self._facts, self._done = path, facts, done
        self._ended = threading.Event()
        self._temporary: Path | None = None
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def __enter__(self) -> "AtWork":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread, and remove the file."""
        self._ended.set()
        self._thread.join(_PATIENCE)
        if self._temporary is not None:
            for path in (self._path, self._temporary):
                with suppress(OSError):
                    path.unlink()

    def _run(self) -> None:
        pause = _FIRST
        while not self._ended.wait(pause):
            pause = _RENEWED
            self._write()

    def _write(self) -> None:
        if self._temporary is None:
            self._temporary = temporary_for(self._path)
        now = {"at": time.time(), "done": int(self._done())}
        text = json.dumps({"schema": SCHEMA, **self._facts, **now})
        with suppress(OSError):
            make_folder(self._path.parent)
            with open(self._temporary, "w", opener=_opener) as file:
                file.write(text)
            os.replace(self._temporary, self._path)


def _opener(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o644)
