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
_COUNTED = {"YES": "counted for each slot", "JOB": "counted once per job"}

Which = Callable[[str], str | None]


def _silent(scheduler: str, answer: Reply) -> Finding:
    """A scheduler that is here but does not answer; jobs on this machine alone still run."""
    text = f"does not answer: {answer.reason}; jobs on this machine (profiles/local) do not need it"
    cure = "try again before you submit, from a login node; if it persists, ask your site"
    return note(scheduler, text, cure, present=True, answers=False)


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
    """Whether Grid Engine is here and answers; GPU complexes.

    Before its first job a run itself checks whether Grid Engine knows what the profile asks for.
    """
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
    if complexes:
        named = "; ".join(f"{name} ({kind}, {how})" for name, (kind, how) in complexes.items())
        yield ok("gpus", named, complexes=complexes)
    else:
        text = "no complex has gpu or cuda in its name, so it cannot give GPUs to jobs"
        cure = f"ask your site what its GPU jobs ask for; name it in the line uge_gpu of {_PROFILE}"
        yield note("gpus", text, cure, complexes={})
    if "JOB_ID" not in os.environ:
        counted = [name for name, (_, how) in complexes.items() if how in _COUNTED.values()]
        yield on_a_node(f"qrsh -cwd -l {(counted or ['gpu'])[0]}=1")


def gpu_complexes(printed: str) -> dict[str, tuple[str, str]]:
    """Type and counting of the complexes of ``qconf -sc`` with gpu or cuda in their names."""
    rows = [line.split() for line in printed.splitlines() if not line.startswith("#")]
    return {
        row[0]: (row[2], _COUNTED.get(row[5], "not counted"))
        for row in rows
        if len(row) > 5 and _GPU.search(f"{row[0]} {row[1]}")
    }
