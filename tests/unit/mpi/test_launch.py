"""Starting MPI ranks: command line, environment, who is a rank; and real ranks that die."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shardwise.devices import choose
from shardwise.errors import InputError, TryAgain
from shardwise.mpi import launch

from tests import factories, processes
from tests.factories import run, stack

OWN = str(Path(sys.executable).with_name("mpiexec"))


@pytest.mark.parametrize(("launcher", "more", "words"), [
    # The mpiexec beside this Python comes first, also under Grid Engine, whatever else is on PATH.
    (None, {}, [OWN, "-n", "5"]),
    ("mpiexec", {"PE_HOSTFILE": "/x", "NSLOTS": "4"}, [OWN, "-n", "5"]),
    # A library's launcher is in the bin folder next to its lib, or on PATH.
    (None, {"MPI4PY_LIBMPI": "{site}/lib/libmpi.so.40"}, ["{site}/bin/mpiexec", "-n", "5"]),
    (None, {"MPI4PY_LIBMPI": "libmpi.so.40"}, ["{site}/bin/mpiexec", "-n", "5"]),
    # Words are read as in a shell, but no shell runs them.
    ("srun -x 'A B' $(touch x) `y`; z", {},
     ["{site}/bin/srun", "-x", "A B", "$(touch", "x)", "`y`;", "z", "-n", "5"]),
])  # fmt: skip
def test_the_command_line_of_a_launcher(tmp_path, launcher, more, words):
    """The program, the words of the user, and the number of ranks."""
    site = tmp_path / "a site"
    processes.commands(site / "bin", **dict.fromkeys(("srun", "mpiexec"), "#!/bin/sh\n"))
    more = {name: text.format(site=site) for name, text in more.items()}
    found = launch.build_command(5, launcher, {"PATH": str(site / "bin"), **more})
    assert found == [word.format(site=site) for word in words]
    with pytest.raises(InputError, match="No closing quotation"):
        launch.build_command(2, "srun 'x")


WHO = {
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "3"}, True, 3),
    "Open MPI": ({"OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "0"}, True, 3),
    "Open MPI in a shell under srun": ({"OMPI_COMM_WORLD_SIZE": "3", "PMI_SIZE": "1"}, True, 3),
    "a step of Slurm": ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "8"}, True, 3),
    "PMIx alone, which tells no size": ({"PMIX_RANK": "0"}, True, 0),
    "started here": ({"SHARDWISE_RANKS": "3", "PMI_SIZE": "1"}, True, 3),
    "a laptop": ({}, False, 2),
    "a batch script of Slurm": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, False, 8),
    "a slot of Grid Engine": ({"NSLOTS": "4", "PE_HOSTFILE": "/x"}, False, 4),
    "a shell under srun": (
        {"PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "1"}, False, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("environ", "is_rank", "ranks"), WHO.values(), ids=WHO)
def test_who_is_a_rank_and_how_many_there_are(environ, is_rank, ranks):
    """A rank expects what its launcher started; other processes the tasks or slots, or two."""
    assert (launch.is_rank(environ), launch.expected_ranks(environ)) == (is_rank, ranks)


def test_the_environment_keeps_what_the_user_set(monkeypatch):
    """The user's value replaces our default; the variables of an outer rank are removed."""
    user = {"SLURM_KILL_BAD_EXIT": "0", "X": "1"}
    for name, text in (user | {"PMI_SIZE": "1", "PMIX_RANK": "0"}).items():
        monkeypatch.setenv(name, text)
    _, made = launch.call(4, None, [])
    assert user.items() <= made.items()
    assert not {"PMI_SIZE", "PMIX_RANK"} & made.keys()
    assert (launch.is_rank(made), launch.expected_ranks(made)) == (True, 4)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0"}
GRID = {"JOB_ID": "7", "NHOSTS": "2", "SGE_HGR_gpu": "gpu0", "SGE_HGR_TASK_gpu": "0"}


@pytest.mark.parametrize("job", [SLURM, GRID | {"CUDA_VISIBLE_DEVICES": "0", "SGE_GPU": "0"}])
def test_the_devices_of_the_first_node_are_those_of_no_other(monkeypatch, job):
    """Ranks get none from mpiexec; they keep those of their node, or restore the first node's."""
    one = job | {"NHOSTS": "1", "SLURM_JOB_NUM_NODES": "1"}
    assert launch._without_grant(one) == one
    given = launch._without_grant(job | {"HOME": "/home"})
    assert not choose.variables(given)
    assert given["HOME"] == "/home"
    first, elsewhere = dict(given), given | {"SGE_HGR_gpu": "gpu1"}
    launch._own_grant(first)
    assert first == job | {"HOME": "/home"}
    monkeypatch.setattr(launch.socket, "gethostname", lambda: "another")
    launch._own_grant(elsewhere)
    assert not {"CUDA_VISIBLE_DEVICES", "SGE_GPU"} & elsewhere.keys()
    assert elsewhere["SGE_HGR_gpu"] == "gpu1"


def test_slurm_is_asked_for_the_nodes_of_a_job(tmp_path, monkeypatch):
    """Try again later if it does not say them, as when the job has just been cancelled."""
    squeue = f"#!/bin/sh\ncat {tmp_path}/said\n"
    monkeypatch.setenv("PATH", processes.commands(tmp_path, squeue=squeue, said="node[1-2] 2"))
    assert launch._slurm_nodes(3, {"SLURM_JOB_ID": "7"})["SLURM_TASKS_PER_NODE"] == "2(x2)"
    (tmp_path / "said").write_text("")
    with pytest.raises(TryAgain, match="squeue does not list the nodes of job 7"):
        launch._slurm_nodes(3, {"SLURM_JOB_ID": "7"})


@pytest.fixture
def made(tmp_path):
    """A plan of seven matrices in three shards, computed."""
    return factories.listed(factories.plan(tmp_path, stack((7, 4, 4)), shards=3))


def test_the_reduce_starts_more_ranks_than_cores(made):
    """One command; the summary tells where the ranks were, and the log how to do it again.

    Hydra is given two names of this machine by -hosts, and starts the ranks itself.
    """
    ranks = len(os.sched_getaffinity(0)) + 1
    words = f"{OWN} -launcher fork -hosts localhost,127.0.0.1"
    done = run("reduce", "--plan", made.results.plan, "--ranks", ranks, "--launcher", words)
    assert done.returncode == 0, done.stderr
    assert f"starting {ranks} ranks: {words} -n {ranks}" in done.stderr
    summary = json.loads(made.results.summary.read_text())
    assert summary["nodes"] == {summary["node"]: ranks}
    (by_hand,) = [line for line in done.stderr.splitlines() if "by hand: " in line]
    made.results.statistic("sum").unlink()
    again = subprocess.run(
        by_hand.partition("by hand: ")[2], shell=True, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert made.results.statistic("sum").exists()


def test_one_rank_needs_no_launcher(made):
    """A machine without any MPI launcher still reduces with one rank."""
    done = run("reduce", "--plan", made.results.plan, "--ranks", 1, env=os.environ | {"PATH": ""})
    assert done.returncode == 0, done.stderr
    assert "starting" not in done.stderr


# Each rank leaves a file, named by its rank, that holds its process number.
WAITING = """
import os, sys, time
from argparse import Namespace
from shardwise.mpi import launch
MPI = launch.start_ranks(Namespace(ranks=3, launcher=sys.argv[2]))
open(f"{sys.argv[1]}/{MPI.COMM_WORLD.rank}", "w").write(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
time.sleep(100)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, factories.nightly(signal.SIGINT), signal.SIGKILL, None]
)
def test_no_rank_outlives_the_command_or_another_rank(tmp_path, number):
    """A signal to the command, even -9, or -9 to one rank (None): all are gone in seconds.

    They leave no shared memory.
    """
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    line = [sys.executable, str(program), str(tmp_path), "mpiexec"]
    path = {"PYTHONPATH": str(factories.SCRIPTS)}
    started = subprocess.Popen(line, env=os.environ | path, stderr=subprocess.DEVNULL)
    paths = [tmp_path / str(rank) for rank in range(3)]
    processes.until(lambda: all(path.exists() and path.read_text() for path in paths), 60)
    ranks = [int(path.read_text()) for path in paths]
    maps = "".join(Path(f"/proc/{rank}/maps").read_text() for rank in ranks)
    shared = set(re.findall(r"/\S*mpich_shm_\S+", maps))
    os.kill(started.pid if number else ranks[0], number or signal.SIGKILL)
    assert started.wait(timeout=20) != 0
    processes.until(lambda: not processes.living(ranks), 20)
    assert [os.path.exists(name) for name in shared] == [False]
