"""What the doctor finds, and how it asks other programs: never longer than it has time."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.host import SCRIPTS
from shardwise.processes.environment import without_stray

OK, NOTE, FAULT = "ok", "note", "fault"

LIBRARY = Path(__file__).parents[2]

_END_SECONDS = 0.5
"""How long programs may take to end when they are asked to."""

_LEAST_SECONDS = 0.2


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: str  # ``ok``, ``note`` (the main job runs all the same) or ``fault`` (it does not)
    text: str
    cure: str = ""
    # What ``text`` says, for programs; sizes in bytes, times in Unix seconds.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Exit code that a fault leads to: 2 where something has to be changed, 75 where time helps.
    code: int = 0
    section: str = ""  # filled in by who runs the section


def ok(name: str, text: str, **facts: Any) -> Finding:
    """Something is as it should be."""
    return Finding(name, OK, text, facts=facts)


def note(name: str, text: str, cure: str = "", **facts: Any) -> Finding:
    """Something to know; the main job runs all the same."""
    return Finding(name, NOTE, text, cure, facts)


def fault(name: str, text: str, cure: str, code: int = 2, **facts: Any) -> Finding:
    """Something keeps the main job from running, or will make it fail."""
    return Finding(name, FAULT, text, cure, facts, code)


def on_a_node(start: str) -> Finding:
    """The hint to look at a node from a job there, which these words start."""
    line = f"{start} {shlex.join([sys.executable, str(SCRIPTS / 'doctor.py')])}"
    return note("nodes", "what a node has, the doctor tells in a job there:", line)


def refused(name: str, error: ShardwiseError, cure: str) -> Finding:
    """A fault as the library explains it; ``cure`` is for one that says nothing of what to do."""
    text, _, told = str(error).rpartition("; ")
    return fault(name, text or told, told if text else cure, code=error.exit_code)


class Deadline:
    """The time that is left for some questions together, in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = min(limit, 1e6)  # of ``inf`` the kernel has no number
        self._end = time.monotonic() + self.limit

    def left(self) -> float:
        """Seconds from now; always some, so that whatever has answered already is read."""
        return max(_LEAST_SECONDS, self._end - time.monotonic())


@dataclass(frozen=True)
class Reply:
    """What a program printed, and its exit code; None if it gave none in time."""

    code: int | None
    out: str
    err: str

    @property
    def reason(self) -> str:
        """Its last words, for a message."""
        if self.code is None:
            return "no answer in time"
        if self.code < 0:
            return f"it was ended by signal {-self.code}"
        words = (self.err.strip() or self.out.strip()).splitlines()
        return words[-1].strip() if words else f"it ended with {self.code} and said nothing"

    def said(self) -> list[dict[str, Any]]:
        """The lines of JSON in it, between whatever else was printed; half a line is none."""
        found = []
        for line in self.out.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]


Ask = Callable[..., Reply]


def environment() -> dict[str, str]:
    """The environment for a program that imports this library, wherever it was started."""
    paths = [str(LIBRARY), os.environ.get("PYTHONPATH", "")]
    return {**without_stray(), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def ask(words: Sequence[str], deadline: Deadline, env: Mapping[str, str] | None = None) -> Reply:
    """Run a program to its end, or to the deadline; then it is ended with all that it started."""
    return ask_all([words], deadline, env)[0]


def ask_all(
    lines: Sequence[Sequence[str]], deadline: Deadline, env: Mapping[str, str] | None = None,
    grace: float = _END_SECONDS,
) -> list[Reply]:  # fmt: skip
    """Run several programs side by side, each in a process group, which is ended as a whole.

    Those that do not answer have some seconds of grace to end what they started themselves.
    """
    asked: dict[int, subprocess.Popen[str]] = {}
    replies: dict[int, Reply] = {}
    try:
        for number, words in enumerate(lines):
            try:
                asked[number] = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, errors="replace", env=env, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                replies[number] = Reply(127, "", str(error))
        for number, process in asked.items():
            replies[number] = _output(process, deadline)
        return [replies[number] for number in range(len(lines))]
    finally:
        _end([asked[n] for n in asked if n not in replies or replies[n].code is None], grace)


def _output(process: "subprocess.Popen[str]", deadline: Deadline) -> Reply:
    try:
        out, err = process.communicate(timeout=deadline.left())
    except subprocess.TimeoutExpired as late:  # what was read so far comes as bytes
        parts = (part or "" for part in (late.output, late.stderr))
        texts = (p.decode(errors="replace") if isinstance(p, bytes) else p for p in parts)
        return Reply(None, *texts)
    return Reply(process.returncode, out, err)


def _end(silent: "Sequence[subprocess.Popen[str]]", grace: float) -> None:
    """End the groups of programs that did not answer, as the first of a group may be gone already.

    What the kernel does not let go is left behind.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in silent:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        soon = Deadline(grace)
        for process in silent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(soon.left())
    for process in silent:
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
