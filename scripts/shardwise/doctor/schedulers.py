"""Slurm and Grid Engine, asked from here: whether they answer, their GPUs, how they start MPI."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator

from shardwise.doctor.findings import Ask, Deadline, Finding, Reply, ask, note, ok, on_a_node
from shardwise.units import count

_PMI = "pmi2"  # what the mpich wheel speaks, and profiles/slurm names
_ENTRY = re.compile(r"gpu(?::[^,(]+)*")
_GPU = re.compile("gpu|cuda", re.IGNORECASE)
_PROFILE = "profiles/uge/config.yaml"
_ENVIRONMENT = "mpi"  # that of the profile
_COUNTED = {"YES": "counted for each slot", "JOB": "counted once per job"}

Which = Callable[[str], str | None]


_NO_CLUSTER = "its commands are here, but know no cluster"
_SILENT = {
    "configuration source": (_NO_CLUSTER, "", False),
    "SGE_ROOT": (f"{_NO_CLUSTER} (SGE_ROOT is not set)", "source your site's settings.sh", False),
    "denied: host": ("this host may not ask it (it is no submit host); jobs can run here all the "
                     "same", "start jobs from a login node", True),
    "": ("does not answer: {}; jobs on this machine (profiles/local) need none",
         "try again before you submit; where it lasts, ask your site", True),
}  # fmt: skip
"""By what an error says: what it means, what to do, and whether there is a cluster."""


def _silent(scheduler: str, answer: Reply) -> Finding:
    """A scheduler whose commands are here, and that does not answer: jobs of this machine run."""
    text, cure, present = next(row for words, row in _SILENT.items() if words in answer.err)
    return note(scheduler, text.format(answer.reason), cure, present=present, answers=False)


def slurm(deadline: Deadline, ask: Ask = ask, which: Which = shutil.which) -> Iterator[Finding]:
    """Whether Slurm is here and answers; GPUs; MPI types."""
    if which("sbatch") is None:
        yield note("slurm", "none here: sbatch is not on PATH", present=False)
        return
    answer = ask(["sinfo", "--Node", "--noheader", "--format=%N|%G"], deadline)
    if answer.code != 0:
        yield _silent("slurm", answer)
        return
    version = ask(["sinfo", "--version"], deadline).out.strip()
    yield ok("slurm", f"{version} answers", present=True, answers=True, version=version)
    yield _gpus(answer.out)
    yield _mpi(ask(["srun", "--mpi=list"], deadline))
    if "SLURM_JOB_ID" not in os.environ:
        yield on_a_node("srun --gres=gpu:1")


def _gpus(printed: str) -> Finding:
    """The GPUs, by kind, of the nodes that ``sinfo`` lists, each once for every partition."""
    nodes = dict(line.strip().split("|", 1) for line in printed.splitlines() if "|" in line)
    kinds = Counter(",".join(_ENTRY.findall(gres)) for gres in nodes.values())
    kinds.pop("", None)
    if not kinds:
        cure = "ask your site; or set backend: numpy, and remove gres in profiles/slurm/config.yaml"
        return note("gpus", "Slurm offers no gpu: its nodes have no such gres", cure, kinds={})
    text = "; ".join(f"{gpus} on {count(number, 'node')}" for gpus, number in kinds.items())
    return ok("gpus", text, kinds=dict(kinds))


def _mpi(answer: Reply) -> Finding:
    """What ``srun`` can start ranks with; it prints the list in one stream or the other."""
    types = re.findall(r"^(?:srun:)?\s*(\w+)$", answer.out + answer.err, re.MULTILINE)
    text = f"srun --mpi has {', '.join(types) or 'nothing'}"
    if _PMI not in types:
        cure = 'in profiles/slurm/config.yaml, set mpi: "mpiexec"'
        return note("mpi types", f"{text}: not {_PMI}", cure, types=types)
    return ok("mpi types", text, types=types)


def grid_engine(
    deadline: Deadline, ask: Ask = ask, which: Which = shutil.which
) -> Iterator[Finding]:
    """Whether Grid Engine is here and answers; GPU complexes; parallel environments."""
    if which("qsub") is None:
        yield note("grid engine", "none here: qsub is not on PATH", present=False)
        return
    if which("qconf") is None:
        yield note("grid engine", "the qsub here is of another scheduler (no qconf)", present=False)
        return
    answer = ask(["qconf", "-sc"], deadline)
    if answer.code != 0:
        yield _silent("grid engine", answer)
        return
    version = (ask(["qstat", "-help"], deadline).out.splitlines() or ["Grid Engine"])[0].strip()
    yield ok("grid engine", f"{version} answers", present=True, answers=True, version=version)
    complexes = gpu_complexes(answer.out)
    yield _complexes(complexes)
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


def _complexes(complexes: list[dict[str, str]]) -> Finding:
    """What jobs can ask for GPUs by."""
    told = [f"{row['name']} ({row['type']}, {_COUNTED.get(row['consumable'], 'not counted')})"
            for row in complexes]  # fmt: skip
    if told:
        return ok("gpus", "; ".join(told), complexes=complexes)
    text = "no complex has gpu or cuda in its name: it cannot give GPUs to jobs"
    cure = f"ask your site what its GPU jobs ask for; name it in the line uge_gpu of {_PROFILE}"
    return note("gpus", text, cure, complexes=[])


def _environments(deadline: Deadline, ask: Ask) -> Finding:
    """The parallel environments, and whether the one that the profile names is among them."""
    answer = ask(["qconf", "-spl"], deadline)
    names = answer.out.split() if answer.code == 0 else []
    text = ", ".join(names)
    if _ENVIRONMENT in names:
        return ok("environments", text, names=names)
    if names:
        text = f"{text}; there is no {_ENVIRONMENT!r}, which the reduce asks for"
        cure = f"name another in the line uge_parallel of {_PROFILE}"
    else:
        text = "there is no parallel environment"
        cure = f'ask your site, or set uge_parallel: "" in {_PROFILE}: all ranks on one slot'
    return note("environments", text, cure, names=names)
