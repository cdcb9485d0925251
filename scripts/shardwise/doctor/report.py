"""The doctor's report: all sections and the verdict, as text and as JSON."""

import json
import shutil
import socket
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.doctor.findings import (
    FAULT,
    NOTE,
    OK,
    Answer,
    Deadline,
    Finding,
    ask_all,
    environment,
    fault,
    note,
)

FORMAT = 1
"""Of the JSON; raised when a key changes its meaning or goes."""

TITLES = {
    "config": "Config",
    "python": "Python and packages",
    "gpus": "GPUs",
    "mpi": "MPI",
    "slurm": "Slurm",
    "grid engine": "Grid Engine",
    "leftovers": "Leftovers",
    "results": "Results folder",
}
_MARKS = {OK: "ok", NOTE: "--", FAULT: "!!"}
_SCHEDULERS = ("slurm", "grid engine")
"""Sections that no job on this machine depends on."""

_RUN = tuple(name for name in TITLES if name != "config")
_SPARE_SECONDS = 2.5
"""What a section has beyond its time limit: to start, and to end what it has asked."""

_END_SECONDS = 1.5
"""Of that, what ending takes."""

_WIDTH = 14
_WIDEST = 120


@dataclass(frozen=True)
class Report:
    """All findings of one look at this machine, in the order of :data:`TITLES`."""

    findings: Sequence[Finding]

    @property
    def code(self) -> int:
        """0 where the main job can run; 2 where something has to be changed; 75 to try again."""
        return min((f.code for f in self.findings if f.level == FAULT), default=0)

    @property
    def backend(self) -> str:
        """What the main job computes with here: ``cupy`` or ``numpy``."""
        gpus = {f.name: f.level for f in self.findings if f.section == "gpus"}
        return "cupy" if "backend" not in gpus and gpus.get("driver") == OK else "numpy"

    @property
    def devices(self) -> list[str]:
        """The UUIDs of the devices that are free and compute."""
        return [f.facts["uuid"] for f in self.findings if f.facts.get("usable")]

    @property
    def verdict(self) -> str:
        """One line."""
        faults = [f for f in self.findings if f.level == FAULT]
        if faults:
            named = ", ".join(dict.fromkeys(f"{TITLES[f.section]}: {f.name}" for f in faults))
            later = "now; try again later" if self.code == 75 else "yet"
            return f"the main job cannot run here {later} ({named})"
        if self.backend == "numpy":
            return "the main job can run here: with NumPy"
        here = sum("usable" in f.facts for f in self.findings)
        count = f"{here}" if here == len(self.devices) else f"{len(self.devices)} of {here}"
        return f"the main job can run here: with cupy on {count} device{'s' if here > 1 else ''}"

    def text(self, width: int) -> str:
        """For people, in lines of this many characters."""
        now = time.strftime("%Y-%m-%d %H:%M")
        lines = [f"Shardwise doctor on {socket.gethostname()}, {now}"]
        section = name = ""
        for finding in self.findings:
            if finding.section != section:
                section, name = finding.section, ""
                lines += ["", TITLES[section]]
            # What belongs to the thing above does not repeat its name.
            lines += _lines(finding, "" if finding.name == name else finding.name, width)
            name = finding.name
        return "\n".join([*lines, "", f"{'!!' if self.code else 'ok'}  {self.verdict}", ""])

    def json(self) -> str:
        """For programs; the keys are those that docs/doctor.md lists."""
        verdict = {
            "can_run": self.code == 0,
            "exit_code": self.code,
            "backend": self.backend,
            "devices": self.devices,
            "text": self.verdict,
        }
        findings = [
            {key: getattr(finding, key) for key in ("section", "name", "level", "text", "cure")}
            | {"exit_code": finding.code, "facts": finding.facts}
            for finding in self.findings
        ]
        head = {"format": FORMAT, "host": socket.gethostname(), "time": time.time()}
        return json.dumps({**head, "verdict": verdict, "findings": findings}, indent=1) + "\n"


def look(options: dict[str, Any], before: Iterable[Finding] = ()) -> Report:
    """Look at everything, all sections side by side, each in a process of its own.

    So what hangs or dies in one, as a lost device or disk may, costs that section and no more.

    Parameters
    ----------
    options
        ``results``, ``backend``, ``launcher``, and ``time_limit`` in seconds for each section.
    before
        Findings of the section ``config``.
    """
    deadline = Deadline(options["time_limit"] + _SPARE_SECONDS)
    line = [sys.executable, "-P", "-m", "shardwise.doctor"]
    lines = [[*line, name, json.dumps(options)] for name in _RUN]
    answers = ask_all(lines, deadline, environment(), _END_SECONDS)
    found = [*before]
    for name, answer in zip(_RUN, answers, strict=True):
        found += read(name, answer)
    return Report(found)


def read(name: str, answer: Answer) -> list[Finding]:
    """The findings of a section, with one more where it did not come to its end."""
    found = [Finding(**line) for line in answer.said()]
    if answer.code is None:
        text = "this hangs: there was no answer in time"
        cure = "try again with --time-limit 60; where it lasts, tell the admin"
        hangs = note("check", text, cure) if name in _SCHEDULERS else fault("check", text, cure, 75)
        found.append(replace(hangs, section=name))
    elif answer.code:
        text = f"this could not be looked at: {answer.reason} (exit code {answer.code})"
        cure = "a fault of the doctor, please report it"
        found.append(replace(fault("check", text, cure), section=name))
    return found


def _lines(finding: Finding, name: str, width: int) -> list[str]:
    """A finding with its mark and its name, and its cure below."""
    first = f"  {_MARKS[finding.level]}  {name:{_WIDTH}}"
    hang = " " * len(first)
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    wrap.initial_indent, wrap.subsequent_indent = first, hang
    lines = wrap.wrap(finding.text) or [first]
    if finding.cure:
        wrap.initial_indent, wrap.subsequent_indent = f"{hang}→ ", f"{hang}  "
        lines += wrap.wrap(finding.cure)
    return lines


def terminal_width() -> int:
    """Characters of a line here."""
    return min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
