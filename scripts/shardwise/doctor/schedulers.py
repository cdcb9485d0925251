"""Slurm and Grid Engine: whether they answer, and which of their resources a profile can name."""

import re
import shutil

from shardwise.doctor.finding import Call, Finding, Findings, judge

_SLURM, _UGE = "profiles/slurm/config.yaml", "profiles/uge/config.yaml"
_LOCAL = "jobs on this machine (profiles/local) need none"

CLIENTS = {  # a command that exists with it; one that tells the version
    "slurm": ("sbatch", "sinfo --version"),
    "grid engine": ("qconf", "qstat -help"),
}
QUESTIONS = {  # name, command, pattern of the answers, pattern the shipped profile needs, words
    "slurm": (
        ("partitions", "sinfo --noheader --format=%P", r"\S+", r"\*",
         "a default, or one in the profile", f"name one in {_SLURM}, key slurm_partition"),
        ("gpus", "sinfo --noheader --format=%G", r"gpu(?::[^,(\s]+)*", "gpu",
         "nodes with the gres gpu", f"ask your site; or backend: numpy, and no gres in {_SLURM}"),
        ("mpi types", "srun --mpi=list", r"^(?:srun:)?\s*(\w+)$", "pmi2",
         "pmi2, for the MPI in .venv", f'in {_SLURM}, set mpi: "mpiexec"'),
    ),
    "grid engine": (
        ("gpus", "qconf -sc", r"^([^#\s]*(?:gpu|cuda)\S*) +\S+ +(\S+) +\S+ +\S+ +(\S+)", r"\bgpu\b",
         "a consumable that counts GPUs", f"name your site's own in the line uge_gpu of {_UGE}"),
        ("environments", "qconf -spl", r"\S+", r"\bmpi\b",
         "a parallel environment for MPI", f"name one of them in the lines uge_parallel of {_UGE}"),
    ),
}  # fmt: skip


def check(ask: Call, name: str, which: Call = shutil.which) -> Findings:
    """Whether a scheduler answers, and what it has."""
    client, version = CLIENTS[name]
    if which(client) is None:
        yield Finding("note", name, f"none here: {client} is not on PATH", _LOCAL)
        return
    yield Finding("ok", name, (ask(version.split()).out.splitlines() or [f"{client} is here"])[0])
    for what, question, pattern, needed, allowed, do in QUESTIONS[name]:
        reply = ask(question.split())
        if reply.code != 0:
            cure = "try again before you submit, from a login node; if it persists, ask your site"
            yield Finding("note", name, f"{question}: {reply.last}", _LOCAL, cure)
            return
        rows = re.findall(pattern, reply.out, re.MULTILINE | re.IGNORECASE)
        found = ", ".join(dict.fromkeys(r if isinstance(r, str) else " ".join(r) for r in rows))
        yield judge(re.search(needed, found), what, found or "none", allowed, do)
