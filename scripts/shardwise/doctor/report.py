"""The doctor's report: all sections and the verdict, as text and as JSON."""

import json
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwise.doctor import findings as base
from shardwise.doctor.findings import FAULT, NOTE, OK, Deadline, Finding, Reply, fault, note, ok
from shardwise.errors import ShardwiseError, one_line
from shardwise.plan import config
from shardwise.plan.config_file import read_files

FORMAT = 1
"""Of the JSON; raised when a key changes its meaning or goes."""

TITLES = {
    "config": "Config",
    "python": "Python and packages",
    "gpus": "GPUs",
    "mpi": "MPI",
    "slurm": "Slurm",
    "grid engine": "Grid Engine",
    "results": "Results folder",
}
_MARKS = {OK: ("ok", "green"), NOTE: ("--", "yellow"), FAULT: ("!!", "red")}
_SCHEDULERS = ("slurm", "grid engine")
"""Sections that no job on this machine depends on."""

_RUN = tuple(name for name in TITLES if name != "config")
_SPARE_SECONDS = 2.5
"""What a section has beyond its time limit: to start, and to end what it has asked."""

_END_SECONDS = 1.5
"""Of that, what ending takes."""

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

    def show(self, console: Console) -> None:
        """For people."""
        now = time.strftime("%Y-%m-%d %H:%M")
        console.print(Text(f"Shardwise doctor on {socket.gethostname()}, {now}"))
        for section, findings in groupby(self.findings, lambda finding: finding.section):
            console.print(Text(f"\n{TITLES[section]}", "bold"))
            console.print(_table(findings))
        style = "red" if self.code else "green"
        console.print(Text(f"\n{'!!' if self.code else 'ok'}  {self.verdict}", style))

    def json(self) -> str:
        """For programs; the keys are those that docs/doctor.md lists."""
        verdict = {
            "can_run": self.code == 0, "exit_code": self.code, "backend": self.backend,
            "devices": self.devices, "text": self.verdict,
        }  # fmt: skip
        findings = [asdict(finding) for finding in self.findings]
        for finding in findings:
            finding["exit_code"] = finding.pop("code")
        head = {"format": FORMAT, "host": socket.gethostname(), "time": time.time()}
        return json.dumps({**head, "verdict": verdict, "findings": findings}, indent=1) + "\n"


def look(options: dict[str, Any], before: Iterable[Finding] = ()) -> Report:
    """Look at everything, all sections side by side, each in a process of its own.

    So what hangs or dies in one, as a lost device or disk may, costs that section and no more.
    ``time_limit`` of the options is in seconds for each section; ``before`` are findings of the
    section ``config``.
    """
    deadline = Deadline(options["time_limit"] + _SPARE_SECONDS)
    line = [sys.executable, "-P", "-m", "shardwise.doctor"]
    lines = [[*line, name, json.dumps(options)] for name in _RUN]
    answers = base.ask_all(lines, deadline, base.environment(), _END_SECONDS)
    results = [*before]
    for name, answer in zip(_RUN, answers, strict=True):
        results += read(name, answer)
    return Report(results)


def read(name: str, answer: Reply) -> list[Finding]:
    """The findings of a section, with one more where it did not come to its end."""
    results = [Finding(**line) for line in answer.said()]
    if answer.code is None:
        text = "this hangs: there was no answer in time"
        cure = "try again with --time-limit 60; where it lasts, tell the admin"
        hangs = note("check", text, cure) if name in _SCHEDULERS else fault("check", text, cure, 75)
        results.append(hangs)
    elif answer.code:
        text = f"this could not be looked at: {answer.reason} (exit code {answer.code})"
        cure = "a fault of the doctor, please report it"
        results.append(fault("check", text, cure))
    return [replace(finding, section=name) for finding in results]


def _table(findings: Iterable[Finding]) -> Table:
    """Findings with their marks and names, the cure of each below it."""
    table = Table.grid()
    table.add_column(width=6)
    table.add_column(width=14)
    table.add_column(overflow="fold")
    name = ""
    for finding in findings:
        # What belongs to the thing above does not repeat its name.
        shown = "" if finding.name == name else finding.name
        name = finding.name
        mark, style = _MARKS[finding.level]
        table.add_row(Text(f"  {mark}", style), _plain(shown), _plain(finding.text))
        if finding.cure:
            cure = Table.grid()
            cure.add_row("→ ", _plain(finding.cure))
            table.add_row("", "", cure)
    return table


def _plain(text: str) -> Text:
    """A text of anything: a file may have any name."""
    return Text(one_line(" ".join(text.split())))


def choose(files: list[Path] | None, results: str | None) -> tuple[dict[str, Any], list[Finding]]:
    """The results folder, where it is not named, and the backend; and what the config is worth."""
    chosen = {"results": results or config.DEFAULT_RESULTS, "backend": "auto"}
    files = config.config_files(files)
    if not files:
        return chosen, []
    named = ", ".join(map(str, files))
    try:
        settings = config.load(read_files(files))
    except ShardwiseError as error:
        found = fault("config", str(error), "correct it")
    else:
        chosen = {"results": results or settings.results, "backend": settings.backend}
        found = ok("config", f"{named}: backend {settings.backend}, results {chosen['results']}",
                   files=list(map(str, files)), **chosen)  # fmt: skip
    return chosen, [replace(found, section="config")]


def console() -> Console:
    """Standard output, for names of any alphabet; no wider than people like to read."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    return Console(file=sys.stdout, width=width, highlight=False)
