"""Grid Engine, asked from here: whether it answers, its GPUs and its parallel environments."""

import os
import re
import shutil
from collections.abc import Callable, Iterator

from shardwise.doctor.findings import (
    Answer,
    Ask,
    Deadline,
    Finding,
    ask,
    note,
    ok,
    on_a_node,
    silent,
)

_GPU = re.compile("gpu|cuda", re.IGNORECASE)
_PROFILE = "profiles/uge/config.yaml"
_ENVIRONMENT = "mpi"  # that of the profile
_COUNTED = {"YES": "counted for each slot", "JOB": "counted once a job"}


def findings(
    deadline: Deadline, ask: Ask = ask, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Finding]:
    """Whether it is here and answers; GPU complexes, where they are; parallel environments."""
    if which("qsub") is None:
        yield note("grid engine", "none here: qsub is not on PATH", present=False)
        return
    if which("qconf") is None:
        yield note("grid engine", "the qsub here is of another scheduler (no qconf)", present=False)
        return
    answer = ask(["qconf", "-sc"], deadline)
    if answer.code != 0:
        yield _silent(answer)
        return
    version = (ask(["qstat", "-help"], deadline).out.splitlines() or ["Grid Engine"])[0].strip()
    yield ok("grid engine", f"{version} answers", present=True, answers=True, version=version)
    complexes = gpu_complexes(answer.out)
    yield from _gpus(complexes, deadline, ask)
    yield _environments(deadline, ask)
    if "JOB_ID" not in os.environ:
        counted = [row["name"] for row in complexes if row["consumable"] in _COUNTED]
        yield on_a_node(f"qrsh -cwd -l {(counted or ['gpu'])[0]}=1")


def gpu_complexes(printed: str) -> list[dict[str, str]]:
    """The complexes of ``qconf -sc`` with gpu or cuda in their names."""
    keys = ("name", "shortcut", "type", "relation", "requestable", "consumable")
    rows = (line.split() for line in printed.splitlines() if not line.startswith("#"))
    return [
        dict(zip(keys, row, strict=False))
        for row in rows
        if len(row) >= len(keys) and _GPU.search(f"{row[0]} {row[1]}")
    ]


def host_values(printed: str) -> dict[str, dict[str, str]]:
    """What each host offers, by complex, as ``qhost -F`` prints it; ``global`` holds for all."""
    hosts: dict[str, dict[str, str]] = {}
    host = None
    for line in printed.splitlines():
        if line[:1].strip():
            host = line.split()[0]
        elif host and (match := re.search(r"\w\w:([\w.-]+)=(\S+)", line)):
            hosts.setdefault(host, {})[match[1]] = re.sub(r"\.0+$", "", match[2])
    return hosts


def _silent(answer: Answer) -> Finding:
    if "SGE_ROOT" in answer.err:
        text = "its commands are here, but know no cluster (SGE_ROOT is not set)"
        return note("grid engine", text, "source your site's settings.sh", present=False)
    if "denied: host" in answer.err:
        text = "this host may not ask it (it is no submit host); jobs can run here all the same"
        return note(
            "grid engine", text, "start jobs from a login node", present=True, answers=False
        )
    return silent("grid engine", answer)


def _gpus(complexes: list[dict[str, str]], deadline: Deadline, ask: Ask) -> Iterator[Finding]:
    if not complexes:
        text = "no complex has gpu or cuda in its name: it cannot give GPUs to jobs"
        cure = f"ask your site what its GPU jobs ask for; name it in the line uge_gpu of {_PROFILE}"
        yield note("gpus", text, cure, complexes=[])
        return
    names = [row["name"] for row in complexes]
    hosts = host_values(ask(["qhost", "-F", ",".join(names)], deadline).out)
    for row in complexes:
        name, counted = row["name"], _COUNTED.get(row["consumable"], "not counted")
        free = {host: values[name] for host, values in hosts.items() if name in values}
        facts = {"complex": row, "hosts": free}
        where = ", ".join(f"{host} {value}" for host, value in free.items())
        text = f"{name} ({row['type']}, {counted}); free: {where or 'on no host'}"
        if free:
            yield ok("gpus", text, **facts)
        else:
            yield note("gpus", text, "ask your site which hosts have GPUs", **facts)


def _environments(deadline: Deadline, ask: Ask) -> Finding:
    """The parallel environments, and whether the one that the profile names is among them."""
    answer = ask(["qconf", "-spl"], deadline)
    names = answer.out.split() if answer.code == 0 else []
    if not names:
        cure = (
            f'ask your site for one, or set uge_parallel: "" in {_PROFILE}: all ranks on one slot'
        )
        return note("environments", "there is no parallel environment", cure, names=names)
    if _ENVIRONMENT not in names:
        text = f"{', '.join(names)}; there is no {_ENVIRONMENT!r}, which the reduce asks for"
        cure = f"name another in the line uge_parallel of {_PROFILE}"
        return note("environments", text, cure, names=names)
    return ok("environments", ", ".join(names), names=names)
