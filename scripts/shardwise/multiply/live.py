"""What a task at work says of itself, for who watches from another machine: a small file per shard.

It is first written when the shard has taken a second, renewed every two, and removed at the end.
One that is no longer renewed is of a task that was killed: `sightings` reads it. Nothing that goes
wrong here harms a shard: where the file cannot be written there is none.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from shardwise.devices.gauge import Sample
from shardwise.devices.telemetry import Recorder
from shardwise.files.commit import temporary_for
from shardwise.files.paths import make_folder

log = logging.getLogger(__name__)

SCHEMA = 1

_EVERY = 1.0  # seconds between two samples
_RENEWED = 2  # of them until the file is renewed
_PATIENCE = 5.0  # seconds for the last sample, should the driver hang

_SAMPLED, _ENDED = "sampled", "ended"


class AtWork(AbstractContextManager):
    """A thread beside a shard at work, which says how far that is and samples its device.

    The live file `path` says `facts`, and how many matrices are `done`. The recorder samples the
    device; None on a CPU.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any], done: Callable[[], float],
        recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        self._path, self._facts, self._done, self._recorder = path, facts, done, recorder
        self._words: SimpleQueue[str] = SimpleQueue()
        self._telemetry: dict[str, Any] | None = None
        self._sampled = threading.Event()
        self._temporary: Path | None = None
        self._gauge: Sample | None = None
        self._began, self._patience = time.monotonic(), _PATIENCE
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def __enter__(self) -> "AtWork":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread, and remove the file."""
        self._words.put(_ENDED)
        self._thread.join(self._patience)
        if self._temporary is not None:
            for path in (self._path, self._temporary):
                with suppress(OSError):
                    path.unlink()

    def release(self) -> None:
        """Take the last sample now: the device has done its part. The file goes on."""
        self._words.put(_SAMPLED)

    def telemetry(self) -> dict[str, Any] | None:
        """What the receipt says of the device, once `release` was called; None if unknown."""
        if self._recorder is None:
            return None
        if not self._sampled.wait(_PATIENCE):
            self._patience = 0.0  # it was waited for
        return self._telemetry

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            log.info("telemetry ends: %s", error)
            self._sampled.set()

    def _work(self) -> None:
        ticks, renewal, sampling = 0, 1, self._recorder is not None
        if sampling:
            self._gauge = self._recorder.sample()
        while True:
            try:
                word = self._words.get(timeout=self._until(ticks + 1))
            except Empty:
                ticks = int((time.monotonic() - self._began) / _EVERY)
                if sampling:
                    self._gauge = self._recorder.sample()
                if ticks >= renewal:
                    self._write()
                    renewal = ticks + _RENEWED
                continue
            if word == _ENDED:
                return
            if sampling:
                self._recorder.sample()
                self._telemetry = self._recorder.summarize()
                self._sampled.set()
            sampling, self._gauge = False, None

    def _until(self, tick: int) -> float:
        return max(0.0, self._began + tick * _EVERY - time.monotonic())

    def _write(self) -> None:
        if not self._words.empty():  # perhaps the end, after which nobody would remove it
            return
        if self._temporary is None:
            self._temporary = temporary_for(self._path)
        gauge = None if self._gauge is None else asdict(self._gauge)
        now = {"at": time.time(), "done": int(self._done()), "gauge": gauge}
        text = json.dumps({"schema": SCHEMA, **self._facts, **now})
        with suppress(OSError):
            make_folder(self._path.parent)
            with open(self._temporary, "w", opener=_opener) as file:
                file.write(text)
            os.replace(self._temporary, self._path)


def _opener(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o644)
