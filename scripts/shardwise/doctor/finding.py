"""A finding of the doctor, and how it runs other programs within its time limit."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Call = Callable[..., Any]
Findings = Iterator["Finding"]


@dataclass(frozen=True)
class Finding:
    """What was found, what is allowed, and what to do.

    ``level`` is ``ok``; ``note``, if the main job runs all the same; ``later``, if it cannot run
    now; ``fault``, if something has to be changed first. ``facts`` describe a device, if any.
    """

    level: str
    name: str
    found: str
    allowed: str = ""
    do: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def judge(good: object, name: str, found: str, allowed: str, do: str, bad: str = "note") -> Finding:
    """A finding of level ``ok`` if ``good`` is true, else of level ``bad``."""
    return Finding("ok", name, found) if good else Finding(bad, name, found, allowed, do)


class Reply(NamedTuple):
    """The exit code of a program, None if it did not end in time, and what it printed."""

    code: int | None
    out: str

    @property
    def last(self) -> str:
        """The last line of the output, or else how the program ended."""
        return (self.out.strip().splitlines() or [f"it ended with {self.code}"])[-1].strip()


def ask(words: Sequence[str], end: float, **environ: str) -> Reply:
    """Run a program, which may import this library; end it at the monotonic time ``end``."""
    path = os.pathsep.join(filter(None, (f"{Path(__file__).parents[2]}", os.getenv("PYTHONPATH"))))
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, **environ}, check=False,
            timeout=max(0.5, end - time.monotonic()),
        )  # fmt: skip
    except OSError as error:
        return Reply(127, str(error))
    except subprocess.TimeoutExpired as late:
        return Reply(None, (late.output or b"").decode(errors="replace") + "\nno answer in time")
    return Reply(done.returncode, done.stdout.decode(errors="replace"))
