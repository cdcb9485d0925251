"""What a task at work says of itself, for who watches from another machine: a small file per shard.

It is first written when the shard has taken a second, renewed every two, and removed at the end.
One that is no longer renewed is of a task that was killed: `Observer` reads it. Nothing that goes
wrong here harms a shard: where the file cannot be written there is none.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shardwise.files.commit import temporary_for
from shardwise.files.paths import make_folder

SCHEMA = 1

_FIRST, _RENEWED = 1.0, 2.0  # seconds until the file is first written, and then renewed
_PATIENCE = 5.0  # seconds for the last write, should the disk hang


@contextmanager
def at_work(path: Path, facts: Mapping[str, Any], done: Callable[[], float]) -> Iterator[None]:
    """Say in the live file `path`, while what is inside goes on, how many matrices are `done`."""
    temporary, ended, begun = temporary_for(path), threading.Event(), threading.Event()

    def run() -> None:
        pause = _FIRST
        while not ended.wait(pause):
            pause = _RENEWED
            begun.set()
            now = {"at": time.time(), "done": int(done())}
            with suppress(OSError):
                make_folder(path.parent)
                temporary.write_text(json.dumps({"schema": SCHEMA, **facts, **now}))
                os.replace(temporary, path)

    thread = threading.Thread(target=run, name="live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_PATIENCE)
        # Most shards are tiny, and ask nothing of the disk; nor is it another attempt's file.
        for left in (path, temporary) if begun.is_set() else ():
            with suppress(OSError):
                left.unlink()
