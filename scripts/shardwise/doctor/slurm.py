"""Slurm, asked from here: whether it answers, its GPUs, and how it starts MPI ranks."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardwise.doctor.findings import Answer, Ask, Deadline, Finding, ask, fault, note, ok

CLIENTS = ("sbatch", "squeue", "scancel", "sinfo", "srun")
_PMI = "pmi2"  # what the mpich wheel speaks, and profiles/slurm names
_ENTRY = re.compile(r"gpu(?::[^,(]+)*")


class Nodes(NamedTuple):
    """Nodes of one partition, with the same resources and in the same state."""

    partition: str
    gres: str
    count: int
    state: str
    names: str

    @property
    def gpus(self) -> list[str]:
        """What they have of GPUs, such as ``gpu:a100:4``."""
        return _ENTRY.findall(self.gres)

    @property
    def up(self) -> bool:
        """Whether they take jobs, now or when others end; flags such as ``~`` say no more."""
        return re.sub(r"\W", "", self.state) in {"idle", "mixed", "allocated", "planned"}


def findings(
    deadline: Deadline, ask: Ask = ask, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Finding]:
    """Clients, partitions, GPUs and MPI types."""
    missing = [name for name in CLIENTS if which(name) is None]
    if "sbatch" in missing:
        yield note("slurm", "none here: sbatch is not on PATH", present=False)
        return
    answer = ask(["sinfo", "--noheader", "--format=%P|%G|%D|%T|%N"], deadline)
    if answer.code != 0:
        yield _silent(answer)
        return
    version = ask(["sinfo", "--version"], deadline).out.strip()
    yield ok("slurm", f"{version} answers", present=True, answers=True, version=version)
    if missing:
        yield note(
            "clients", f"not on PATH: {', '.join(missing)}", "ask your site", missing=missing
        )
    nodes = parse_nodes(answer.out)
    yield _partitions(nodes)
    yield _gpus(nodes)
    yield _mpi(ask(["srun", "--mpi=list"], deadline))


def parse_nodes(printed: str) -> list[Nodes]:
    """The lines of ``sinfo --format=%P|%G|%D|%T|%N``."""
    rows = [line.strip().split("|") for line in printed.splitlines()]
    return [Nodes(p, g, int(count), s, n) for p, g, count, s, n in (r for r in rows if len(r) == 5)]


def _silent(answer: Answer) -> Finding:
    if "configuration source" in answer.err:
        return note("slurm", "its commands are here, but know no cluster", present=False)
    return fault(
        "slurm",
        f"does not answer: {answer.reason}",
        "try again; where it lasts, ask your site, or compute here with profiles/local",
        code=75,
        present=True,
        answers=False,
    )


def _partitions(nodes: list[Nodes]) -> Finding:
    names = list(dict.fromkeys(row.partition for row in nodes))
    default = next((name.rstrip("*") for name in names if name.endswith("*")), None)
    plain = [name.rstrip("*") for name in names]
    if default is None:
        text = f"{', '.join(plain) or 'none'}; there is no default"
        cure = "name one in profiles/slurm: slurm_partition"
        return note("partitions", text, cure, names=plain, default=None)
    text = f"{', '.join(plain)}; default: {default}"
    return ok("partitions", text, names=plain, default=default)


def _gpus(nodes: list[Nodes]) -> Finding:
    """The GPUs, by kind; a node in several partitions is counted once."""
    once = {(row.names, row.state): row for row in nodes if row.gpus}.values()
    facts = [row._asdict() for row in nodes if row.gpus]
    if not once:
        text = "Slurm offers no gpu: its nodes have no such gres"
        cure = (
            "remove gres from multiply in profiles/slurm and set backend: numpy, or ask your site"
        )
        return note("gpus", text, cure, nodes=facts)
    states: dict[str, Counter[str]] = {}
    for row in once:
        states.setdefault(",".join(row.gpus), Counter())[row.state] += row.count
    text = "; ".join(
        f"{gpus} on {_count(sum(by.values()))} ({', '.join(f'{n} {s}' for s, n in by.items())})"
        for gpus, by in states.items()
    )
    if not any(row.up for row in once):
        cure = "jobs wait until one is back; sinfo -R tells why they are away"
        return note("gpus", f"{text}: none takes jobs now", cure, nodes=facts)
    return ok("gpus", text, nodes=facts)


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def _mpi(answer: Answer) -> Finding:
    """What ``srun`` can start ranks with; it prints the list in one stream or the other."""
    lines = (answer.out + answer.err).splitlines()
    types = [line.split()[-1] for line in lines if len(line.split()) == 1 or "\t" in line]
    types = [name for name in types if re.fullmatch(r"\w+", name)]
    text = f"srun --mpi has {', '.join(types) or 'nothing'}"
    if _PMI not in types:
        cure = 'in profiles/slurm, set mpi: "mpiexec"'
        return note("mpi types", f"{text}: not {_PMI}", cure, types=types)
    return ok("mpi types", text, types=types)
