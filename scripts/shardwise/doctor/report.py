"""The doctor's report: all sections and the verdict, as text and as JSON."""

import json
import socket
import textwrap
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from shardwise import errors
from shardwise.doctor import gpus, here
from shardwise.doctor.finding import Call, Finding, ask
from shardwise.plan import config
from shardwise.plan.config_file import read_files

_INDENT, _MARKS = " " * 20, {"ok": "ok", "note": "--"}
Report = Mapping[str, list[Finding]]


def sections(options: Namespace) -> dict[str, Call]:
    """The check of each section, by title; the config names results and backend."""
    settings, named = config.load({}), config.config_files(options.configfile)
    found = Finding("ok", "config", ", ".join(map(str, named)) or "none: defaults are used")
    try:
        settings = config.load(read_files(named))
    except errors.InputError as error:
        found = Finding("fault", "config", str(error), "the keys of docs/config.md", "correct it")
    return {
        "Config": lambda ask: [found],
        "Python": here.packages,
        "GPUs": partial(gpus.check, backend=settings.backend),
        "MPI": partial(here.ranks, launcher=options.launcher or "mpiexec"),
        "Slurm": partial(here.schedulers, name="slurm"),
        "Grid Engine": partial(here.schedulers, name="grid engine"),
        "Results": partial(here.disk, results=Path(options.results or settings.results)),
    }


def look(checks: Mapping[str, Call], seconds: float) -> Report:
    """Run all checks in parallel; one that hangs past the time limit costs only its section."""
    end, report = time.monotonic() + seconds, {title: list[Finding]() for title in checks}

    def fill(title: str) -> None:
        try:
            for one in checks[title](partial(ask, end=end)):
                report[title].append(one)  # at once: the next may hang
        except Exception as error:
            code, words = errors.verdict(error)
            found = f"{error!r}; {words}" if code == errors.FAULT else words
            report[title].append(Finding("later" if code == 75 else "fault", "check", found))

    threads = {title: Thread(target=fill, args=[title], daemon=True) for title in checks}
    for thread in threads.values():
        thread.start()
    for title, thread in threads.items():
        thread.join(max(0.0, end + 2 - time.monotonic()))  # programs that it runs end sooner
        if thread.is_alive():
            do = "try again with --time-limit 60; if it persists, tell the admin"
            report[title].append(Finding("later", "check", "this hangs", "an answer in time", do))
    return {title: list(findings) for title, findings in report.items()}


def verdict(report: Report) -> dict[str, Any]:
    """Whether the main job can run here, on which backend and devices, and the exit code."""
    told = [(f"{title}: {one.name}", one) for title, some in report.items() for one in some]
    bad = {name: one.level for name, one in told if one.level in ("later", "fault")}
    code = 2 if any(one.level == "fault" for _, one in told) else 75 if bad else 0
    devices = [one.facts["uuid"] for _, one in told if one.facts.get("works")]
    backend = "cupy" if devices else "numpy"
    text = f"the main job can run here, with {backend}" + f" on {len(devices)}" * bool(devices)
    if bad:
        text = f"the main job cannot run here {'yet' if code == 2 else 'now'} ({', '.join(bad)})"
    return {"exit_code": code, "backend": backend, "devices": devices, "text": text}


def to_json(report: Report) -> str:
    """For programs; docs/doctor.md lists the keys. ``format`` changes if their meaning does."""
    told = [{"section": title.lower(), **asdict(o)} for title, some in report.items() for o in some]
    head = {"format": 2, "host": socket.gethostname(), "time": time.time()}
    return json.dumps({**head, "verdict": verdict(report), "findings": told}, indent=1)


def to_text(report: Report) -> Iterator[str]:
    """For people, line by line."""
    yield f"Shardwise doctor on {socket.gethostname()}, {time.strftime('%Y-%m-%d %H:%M')}"
    wrap = partial(textwrap.fill, width=100, subsequent_indent=_INDENT, break_on_hyphens=False)
    for title, findings in report.items():
        yield f"\n{title}"
        for one in findings:
            lines = [f"  {_MARKS.get(one.level, '!!')}  {one.name:<14}{one.found}"]
            lines += [f"{_INDENT}allowed: {one.allowed}"] * bool(one.allowed)
            lines += [f"{_INDENT}→ {one.do}"] * bool(one.do)
            yield from (errors.shown(wrap(line)) for line in lines)  # file names may hold anything
    told = verdict(report)
    yield f"\n{'!!' if told['exit_code'] else 'ok'}  {told['text']}"
