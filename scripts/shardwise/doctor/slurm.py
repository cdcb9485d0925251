"""Slurm, asked from here: whether it answers, its GPUs, and how it starts MPI ranks."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

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

_PMI = "pmi2"  # what the mpich wheel speaks, and profiles/slurm names
_ENTRY = re.compile(r"gpu(?::[^,(]+)*")


class Node(NamedTuple):
    """A node with its resources and its state, as ``sinfo --format=%N|%G|%T`` prints them."""

    name: str
    gres: str
    state: str

    @property
    def gpus(self) -> str:
        """What it has of GPUs, such as ``gpu:a100:4``."""
        return ",".join(_ENTRY.findall(self.gres))

    @property
    def up(self) -> bool:
        """Whether it takes jobs, now or when others end; flags such as ``~`` say no more."""
        return re.sub(r"\W", "", self.state) in {"idle", "mixed", "allocated", "planned"}


def findings(
    deadline: Deadline, ask: Ask = ask, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Finding]:
    """Whether it is here and answers; GPUs; MPI types."""
    if which("sbatch") is None:
        yield note("slurm", "none here: sbatch is not on PATH", present=False)
        return
    answer = ask(["sinfo", "--Node", "--noheader", "--format=%N|%G|%T"], deadline)
    if answer.code != 0:
        yield _silent(answer)
        return
    version = ask(["sinfo", "--version"], deadline).out.strip()
    yield ok("slurm", f"{version} answers", present=True, answers=True, version=version)
    yield _gpus(nodes(answer.out))
    yield _mpi(ask(["srun", "--mpi=list"], deadline))
    if "SLURM_JOB_ID" not in os.environ:
        yield on_a_node("srun --gres=gpu:1")


def nodes(printed: str) -> list[Node]:
    """The nodes that ``sinfo --Node`` lists, each of them once for every partition it is in."""
    rows = (line.strip().split("|") for line in printed.splitlines())
    return list({row[0]: Node(*row) for row in rows if len(row) == 3}.values())


def _silent(answer: Answer) -> Finding:
    if "configuration source" in answer.err:
        return note("slurm", "its commands are here, but know no cluster", present=False)
    return silent("slurm", answer)


def _gpus(nodes: list[Node]) -> Finding:
    """The GPUs, by kind, and the states of their nodes."""
    having = [node for node in nodes if node.gpus]
    facts = [node._asdict() for node in having]
    if not having:
        text = "Slurm offers no gpu: its nodes have no such gres"
        cure = "ask your site; or set backend: numpy, and remove gres in profiles/slurm/config.yaml"
        return note("gpus", text, cure, nodes=facts)
    states: dict[str, Counter[str]] = {}
    for node in having:
        states.setdefault(node.gpus, Counter())[node.state] += 1
    text = "; ".join(
        f"{gpus} on {_count(by.total())} ({', '.join(f'{n} {s}' for s, n in by.items())})"
        for gpus, by in states.items()
    )
    if not any(node.up for node in having):
        cure = "jobs wait until one is back; sinfo -R tells why they are away"
        return note("gpus", f"{text}: none takes jobs now", cure, nodes=facts)
    return ok("gpus", text, nodes=facts)


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def _mpi(answer: Answer) -> Finding:
    """What ``srun`` can start ranks with; it prints the list in one stream or the other."""
    types = re.findall(r"^(?:srun:)?\s*(\w+)$", answer.out + answer.err, re.MULTILINE)
    text = f"srun --mpi has {', '.join(types) or 'nothing'}"
    if _PMI not in types:
        cure = 'in profiles/slurm/config.yaml, set mpi: "mpiexec"'
        return note("mpi types", f"{text}: not {_PMI}", cure, types=types)
    return ok("mpi types", text, types=types)
