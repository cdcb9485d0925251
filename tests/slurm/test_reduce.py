"""The reduce in a real Slurm job: on one node and on two, by srun and by the mpiexec of .venv."""

import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from shardwise.files import pieces
from shardwise.plan import plan
from shardwise.records import ledger

from tests import factories, impatient
from tests.slurm.cluster import SlurmCluster
from tests.workspace import Workspace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

NODES = {
    "one node": (("-p", "cpu", "-N1", "-n3"), {"cpu1": 3}),
    "two nodes": (("-p", "gpu", "-N2", "-n4", "--ntasks-per-node=2"), {"gpu1": 2, "gpu2": 2}),
}
LEFT = factories.stack((7, 4, 4))


@pytest.fixture
def made(tmp_path: Path) -> plan.Plan:
    """A plan of seven matrices in three shards, computed."""
    made = factories.computed(factories.plan(tmp_path, LEFT, shards=3))
    ledger.write(made)
    return made


def reduce_line(made: plan.Plan, *words: str) -> str:
    """The command line of the reduce."""
    return shlex.join(factories.command("reduce", "--plan", made.results.plan, *words))


@pytest.mark.parametrize("launcher", ["auto", "srun --mpi=pmi2", "mpiexec"])
@pytest.mark.parametrize("where", NODES)
def test_the_ranks_are_where_slurm_granted_them(
    slurm: SlurmCluster, made: plan.Plan, launcher: str, where: str
) -> None:
    """As many ranks as the job has tasks, on its nodes, in one world; and the right sum."""
    options, nodes = NODES[where]
    job = slurm.submit(reduce_line(made, "--launcher", launcher), *options)
    (done,) = slurm.wait_for(job)
    assert done.state == "COMPLETED", slurm.printed(job)
    assert json.loads(made.results.summary.read_text())["nodes"] == nodes
    assert np.array_equal(np.load(made.results.statistic("sum")), (LEFT @ LEFT).sum(axis=0))


def test_auto_works_in_any_shell_of_a_job(slurm: SlurmCluster, made: plan.Plan) -> None:
    """Under an srun that holds the only CPU and all memory, with more ranks than CPUs."""
    line = f"srun -n1 sh -c {shlex.quote(reduce_line(made, '--ranks', '3'))}"
    job = slurm.submit(line, "-p", "cpu", "-n1")
    (done,) = slurm.wait_for(job)
    assert done.state == "COMPLETED", slurm.printed(job)
    assert json.loads(made.results.summary.read_text())["nodes"] == {"cpu1": 3}


@pytest.mark.fault("a rank that raises")
@pytest.mark.parametrize("launcher", ["srun --mpi=pmi2", "mpiexec"])
def test_the_exit_code_reaches_slurm(slurm: SlurmCluster, made: plan.Plan, launcher: str) -> None:
    """A missing product ends the job with 3, its error told once."""
    made.results.product("00001").unlink()
    job = slurm.submit(reduce_line(made, "--launcher", launcher), "-p", "cpu", "-N1", "-n3")
    slurm.wait_for(job)
    assert slurm.show_job(job)["ExitCode"] == "3:0", slurm.printed(job)
    assert slurm.printed(job).count(" ERROR ") == 1


@pytest.mark.parametrize("by_srun", [True, False])
def test_a_launcher_of_another_mpi_is_refused(
    slurm: SlurmCluster, made: plan.Plan, by_srun: bool
) -> None:
    """Worlds of one rank each sum nothing, and start no ranks of their own."""
    line = "srun --mpi=none"
    words = f"{line} {reduce_line(made)}" if by_srun else reduce_line(made, "--launcher", line)
    job = slurm.submit(words, "-p", "cpu", "-N1", "-n2")
    slurm.wait_for(job)
    assert slurm.show_job(job)["ExitCode"] == "2:0", slurm.printed(job)
    assert "asked for 2 ranks, but MPI has 1" in slurm.printed(job)
    assert not made.results.summary.exists()


@pytest.mark.fault("a reduce killed half-way")
def test_a_reduce_that_is_killed_half_way_is_continued(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank on the second node is killed; the next job goes on from what all have saved."""
    monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", 256)
    left = factories.stack((40, 12, 12))
    made = factories.computed(factories.plan(tmp_path, left, shards=7, materialize=False))
    ledger.write(made)
    program = [sys.executable, "-m", "mpi4py", "-m", "tests.killed_program"]
    launcher = ["srun", "--mpi=pmi2", "--kill-on-bad-exit"]
    path = f"PYTHONPATH={shlex.quote(f'{factories.SCRIPTS}:{factories.ROOT}')}"
    for victim, state in ((2, "FAILED"), (-1, "COMPLETED")):
        words = [made.results.plan, 256, 300, victim, 7, "sum"]
        line = shlex.join([*launcher, *program, *map(str, words)])
        job = slurm.submit(f"{path} {line}", "-p", "gpu", "-N2", "-n3")
        (done,) = slurm.wait_for(job, timeout_s=180)
        assert done.state == state, slurm.printed(job)
        assert bool(list(made.results.partial.glob("*.part"))) == (victim >= 0)
        assert made.results.statistic("sum").exists() == (victim < 0)
    assert np.array_equal(np.load(made.results.statistic("sum")), (left @ left).sum(axis=0))


WAITING = """
import os, sys, time
from shardwise.reduce import launch
launch.relaunch(3, sys.argv[2])
from mpi4py import MPI
open(f"{sys.argv[1]}/{MPI.COMM_WORLD.rank}", "w").write(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
time.sleep(100)
"""


@pytest.mark.fault("a rank that is killed")
@pytest.mark.parametrize("launcher", ["srun --mpi=pmi2", "mpiexec"])
@pytest.mark.parametrize("how", ["kill -9 of a rank", "scancel"])
def test_no_rank_outlives_another_or_its_job(
    slurm: SlurmCluster, tmp_path: Path, launcher: str, how: str
) -> None:
    """One rank is killed on the second node, or the job is cancelled: all are gone in seconds."""
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    line = shlex.join([sys.executable, str(program), str(tmp_path), launcher])
    line = f"PYTHONPATH={shlex.quote(str(factories.SCRIPTS))} {line}"
    job = slurm.submit(line, "-p", "gpu", "-N2", "-n3")
    ranks = started(tmp_path, 3)
    if how == "scancel":
        slurm.call("scancel", str(job))
    else:
        os.kill(ranks[2], signal.SIGKILL)
    (done,) = slurm.wait_for(job, timeout_s=60)
    assert done.state == ("CANCELLED" if how == "scancel" else "FAILED")
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < end, "a rank lives on"
        time.sleep(0.1)


def started(folder: Path, count: int) -> list[int]:
    """The process numbers of all ranks, in order, once all have written theirs."""
    end = time.monotonic() + 60
    while True:
        texts = [path.read_text() for path in sorted(folder.glob("[0-9]"))]
        if len(texts) == count and all(texts):
            return [int(text) for text in texts]
        assert time.monotonic() < end, "the ranks never started"
        time.sleep(0.1)


def test_the_profile_spreads_the_ranks(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Ranks lie evenly on the nodes that it asks for, with either launcher, in a Snakemake job."""
    workspace = Workspace.create(tmp_path / "with a space", slurm.env() | impatient.environment())
    np.save(workspace.root / "stack.npy", LEFT)
    own = {"input": "stack.npy", "shards": 1, "materialize": False, "backend": "numpy"}
    workspace.configure(**own, reduce={"ranks": 4})
    profile = workspace.root / "profiles" / "slurm" / "config.yaml"
    shipped = profile.read_text()
    spread = re.sub(r"# (nodes: 2|slurm_extra: )", r"\1", shipped)
    for mpi in ("srun --mpi=pmi2", "mpiexec"):
        text = spread.replace('mpi: "srun --mpi=pmi2"', f'mpi: "{mpi}"\n    slurm_partition: gpu')
        profile.write_text(text)
        quick = ("--slurm-init-seconds-before-status-checks", "2")
        done = workspace.run(*quick, profile="slurm")
        assert done.code == 0, done.output
        summary = json.loads(workspace.file("summary.json").read_text())
        assert summary["nodes"] == {"gpu1": 2, "gpu2": 2}
        assert f"/{mpi} -n 4" in workspace.file("logs/reduce/reduce.log").read_text()
        workspace.file("summary.json").unlink()
