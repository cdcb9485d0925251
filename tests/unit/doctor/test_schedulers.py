"""The doctor's questions to schedulers: real and pretended answers, and silence."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

import pytest
from shardwise.doctor import schedulers
from shardwise.doctor.findings import NOTE, OK, Deadline, Finding, Reply

from tests.factories import ROOT

SINFO = """\
cpu1|(null)
gpu1|gpu:a100:4(S:0-1),nvme:1
gpu1|gpu:a100:4(S:0-1),nvme:1
gpu2|gpu:a100:4(S:0-1),nvme:1
gpu20|gpu:h200:2,gpu:mig:7
"""
TYPES = """\
MPI plugin types are...
\tpmix
\tnone
\tpmi2
specific pmix plugin versions available: pmix_v4
"""
COMPLEXES = """\
#name               shortcut   type      relop requestable consumable default  urgency
#--------------------------------------------------------------------------------------
arch                a          STRING    ==    YES         NO         NONE     0
gpu                 g          INT       <=    YES         JOB        0        0
cuda_arch           ca         STRING    ==    YES         NO         NONE     0
num_proc            p          INT       ==    YES         NO         0        0
"""


def answers(said: dict[str, str | Reply]) -> Callable[..., Reply]:
    """Something that answers commands by how they begin."""

    def ask(words: Sequence[str], deadline: Deadline) -> Reply:
        line = " ".join(words)
        found = next((said[start] for start in said if line.startswith(start)), Reply(1, "", "?"))
        return found if isinstance(found, Reply) else Reply(0, found, "")

    return ask


SLURM = {"sinfo --Node": SINFO, "sinfo --version": "slurm 23.11", "srun": TYPES}
GRID_ENGINE = {
    "qconf -sc": COMPLEXES,
    "qstat": "SGE 8.1.9\nusage: …",
}


def everything(name: str) -> str:
    """A PATH with every client."""
    return f"/usr/bin/{name}"


def ask_slurm(said: dict[str, str | Reply]) -> list[Finding]:
    """The findings about a Slurm that says this."""
    return list(schedulers.slurm(Deadline(9), answers({**SLURM, **said}), everything))


def ask_grid_engine(said: dict[str, str | Reply]) -> list[Finding]:
    """The findings about a Grid Engine that says this."""
    return list(schedulers.grid_engine(Deadline(9), answers({**GRID_ENGINE, **said}), everything))


def test_the_gpus_of_slurm() -> None:
    """By kind; a node in two partitions is counted once."""
    slurm, gpus, types, nodes = ask_slurm({})
    assert [f.level for f in (slurm, gpus, types, nodes)] == [OK, OK, OK, NOTE]
    assert gpus.text == "gpu:a100:4 on 2 nodes; gpu:h200:2,gpu:mig:7 on 1 node"
    kinds = asdict(gpus)["facts"]["kinds"]  # as the section hands it on
    assert json.loads(json.dumps(kinds)) == {"gpu:a100:4": 2, "gpu:h200:2,gpu:mig:7": 1}
    assert types.facts["types"] == ["pmix", "none", "pmi2"]
    assert slurm.facts["answers"]


def test_slurm_without_gpus_or_our_way_to_start_ranks() -> None:
    """Notes with what to change: jobs would be refused."""
    _, gpus, types, _ = ask_slurm({"sinfo --Node": "n1|(null)", "srun": "none"})
    assert "offers no gpu" in gpus.text
    assert 'mpi: "mpiexec"' in types.cure


@pytest.mark.parametrize(
    ("ask", "command", "answer", "words"),
    [
        (ask_slurm, "sinfo --Node", Reply(1, "", "sinfo: error: Unable to contact"), "contact"),
        (ask_slurm, "sinfo --Node", Reply(127, "", "No such file: 'sinfo'"), "No such file"),
        (ask_slurm, "sinfo --Node", Reply(None, "", ""), "no answer in time"),
        (ask_grid_engine, "qconf -sc", Reply(1, "", "error: select\nunable to send"), "unable"),
        (ask_grid_engine, "qconf -sc", Reply(None, "", ""), "no answer in time"),
    ],
)
def test_a_silent_scheduler(ask, command, answer: Reply, words: str) -> None:
    """A master that is away, or a client of no cluster: the main job runs here without it."""
    (found,) = ask({command: answer})
    assert (found.level, found.code) == (NOTE, 0)
    assert words in found.text


@pytest.mark.parametrize("section", [schedulers.slurm, schedulers.grid_engine])
def test_no_scheduler_is_no_fault(section) -> None:
    """One line says so, and nobody is asked."""
    (found,) = section(Deadline(9), answers({}), lambda name: None)
    assert (found.level, found.facts["present"]) == (NOTE, False)


def test_the_gpus_of_grid_engine() -> None:
    """Complexes with gpu or cuda in their names, and how they are counted."""
    master, gpus, nodes = ask_grid_engine({})
    assert (master.level, master.text) == (OK, "SGE 8.1.9 answers")
    assert gpus.text == "gpu (INT, counted once per job); cuda_arch (STRING, not counted)"
    assert nodes.cure == f"qrsh -cwd -l gpu=1 {sys.executable} {ROOT / 'scripts' / 'doctor.py'}"


def test_other_clusters_of_grid_engine() -> None:
    """GPUs per slot, or no complex of that name."""
    per_slot = ask_grid_engine({"qconf -sc": COMPLEXES.replace("JOB", "YES")})
    assert per_slot[1].text.startswith("gpu (INT, counted for each slot)")
    bare = ask_grid_engine({"qconf -sc": "#nothing"})[1]
    assert "it cannot give GPUs" in bare.text
    assert "uge_gpu of profiles/uge/config.yaml" in bare.cure
    assert "\n    uge_gpu: " in (ROOT / "profiles" / "uge" / "config.yaml").read_text()
