"""The main job under profiles/slurm, on a real Slurm with fake GPUs: good runs and bad nights."""

import itertools
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import Job
from tests.workspace import Workspace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

QUICK = ("--slurm-init-seconds-before-status-checks", "2")
SLOW_JOBS = (*QUICK, "--precommand", "sleep 8")


class Night:
    """One workspace on the cluster, and the jobs that were submitted since it began."""

    def __init__(self, slurm: SlurmCluster, root: Path) -> None:
        self.slurm = slurm
        self.workspace = Workspace.create(root, slurm.env())
        self._first = max((job.job_id for job in slurm.jobs()), default=0) + 1

    def jobs(self) -> list[Job]:
        """The jobs of this workspace, finished ones too."""
        return [job for job in self.slurm.jobs() if job.job_id >= self._first]

    def starts(self) -> Counter[str]:
        """How often each job was submitted, as ``rule`` or ``rule shard``."""
        names = (job.comment.removeprefix("rule_") for job in self.jobs())
        return Counter(name.replace("_wildcards_", " ") for name in names)

    def wait_for(self, what: str, true: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until something is true of the cluster."""
        end = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < end, f"never happened: {what}; jobs: {self.jobs()}"
            time.sleep(0.3)

    def running(self, rule: str) -> list[Job]:
        """The running jobs of a rule."""
        return [
            j for j in self.jobs() if j.state == "RUNNING" and j.comment.startswith(f"rule_{rule}")
        ]

    def folder_of(self, count: int) -> np.ndarray:
        """Write ``stack/``, a folder of small whole matrices, and return them as one array."""
        (self.workspace.root / "stack").mkdir()
        stack = np.random.default_rng(1).integers(-9, 9, (count, 5, 5)).astype(np.float64)
        for i, matrix in enumerate(stack):
            np.save(self.workspace.root / "stack" / f"{i:03}.npy", matrix)
        return stack


@pytest.fixture
def night(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Night]:
    """A fresh workspace on an idle cluster."""
    yield Night(slurm, tmp_path / "with a space")
    slurm.cancel_all()


def sum_of_squares(stack: np.ndarray) -> np.ndarray:
    """What the run must give; exact, as all numbers are whole."""
    return (stack @ stack).sum(axis=0)


def receipts(workspace: Workspace) -> list[dict]:
    """All receipts of the products."""
    return [json.loads(p.read_text()) for p in workspace.file("products").glob("*.json")]


def test_every_shard_has_a_device_of_its_own(night: Night) -> None:
    """24 shards and the MPI reduce: one start a job, one shard a device at once, and the sum."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    night.workspace.configure(input="digits.npy", shards=24, materialize=False)
    done = night.workspace.run(*QUICK, profile="slurm", timeout=500)
    assert done.code == 0, done.output
    assert np.array_equal(night.workspace.load("sum.npy"), sum_of_squares(digits))

    shards = [f"{i:05}" for i in range(24)]
    assert night.starts() == Counter([f"multiply {shard}" for shard in shards] + ["reduce"])
    gpu_jobs = {job.comment for job in night.jobs() if "gpu" in job.gres}
    assert gpu_jobs == {f"rule_multiply_wildcards_{shard}" for shard in shards}

    uses: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for receipt in receipts(night.workspace):
        device = receipt["device"]["granted"]
        assert device.isdigit(), f"not exactly one device: {device}"
        key = (receipt["node"], device)
        uses.setdefault(key, []).append((receipt["started"], receipt["finished"]))
    assert {node for node, _ in uses} <= {"gpu1", "gpu2"}
    assert len(uses) > 1, "the shards should have spread over devices"
    for intervals in uses.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(intervals)):
            assert end <= start, f"two shards at once on one device: {uses}"
    journals = night.workspace.file("logs/multiply").glob("*.starts")
    assert [path.read_text().count("\n") for path in journals] == [1] * 24
    assert "multiply: 24 of 24 shards done" in done.output


def test_the_shipped_job_runs_as_it_is(night: Night) -> None:
    """The synthetic stack, its copies and their products: every kind of job goes through Slurm."""
    night.workspace.configure(shards=2)
    done = night.workspace.run(*QUICK, profile="slurm")
    assert done.code == 0, done.output
    rules = [
        "synthesize",
        "reduce",
        *(f"{r} 0000{i}" for r in ("shard", "multiply") for i in (0, 1)),
    ]
    assert night.starts() == Counter(rules)
    stack = night.workspace.load("input.npy")
    expected = sum((m @ m).astype(np.float64) for m in stack)
    assert np.allclose(night.workspace.load("sum.npy"), expected, rtol=1e-5, atol=1e-3)


def test_a_bad_night_costs_its_own_shards_only(night: Night) -> None:
    """A cancelled shard and one that always fails: the others finish, one rerun heals."""
    stack = night.folder_of(12)
    bad = night.workspace.root / "stack" / "009.npy"
    np.save(bad, np.full((5, 5), np.nan))
    night.workspace.configure(input="stack", shards=6, materialize=False)
    run = night.workspace.start(*SLOW_JOBS, "--retries", "0", profile="slurm")

    def cancelled() -> bool:
        for job in night.running("multiply_wildcards_00001"):
            night.slurm.call("scancel", str(job.job_id))
            return True
        return False

    night.wait_for("shard 00001 runs", cancelled)
    assert run.wait(timeout=300) == 1
    output = (night.workspace.root / "run.log").read_text()
    assert {r["shard"] for r in receipts(night.workspace)} == {"00000", "00002", "00003", "00005"}
    assert not night.workspace.file("sum.npy").exists()
    words = output[output.index("shardwise: not finished: 4 of 6 shards") :]
    assert "failed: multiply 00001: the scheduler says CANCELLED" in words
    assert "failed: multiply 00004: " in words
    assert "matrix 9 holds NaN or Inf" in words
    assert "log: results/logs/multiply/00004.log" in words
    assert f"cd '{night.workspace.root}' && " in words

    np.save(bad, stack[9])
    before = night.starts()
    done = night.workspace.run(*QUICK, profile="slurm")
    assert done.code == 0, done.output
    again = {"multiply 00001": 1, "multiply 00004": 1, "reduce": 1}
    assert night.starts() - before == Counter(again)
    assert np.array_equal(night.workspace.load("sum.npy"), sum_of_squares(stack))


def test_a_lost_node_costs_no_result(night: Night) -> None:
    """Jobs of a node that crashes run again elsewhere; what was finished stays."""
    stack = night.folder_of(7)
    night.workspace.configure(input="stack", shards=7, materialize=False)
    run = night.workspace.start(*SLOW_JOBS, profile="slurm")
    try:
        night.wait_for(
            "gpu1 has finished shards and works on others",
            lambda: (
                {"COMPLETED", "RUNNING"} <= {j.state for j in night.jobs() if j.nodes == "gpu1"}
            ),
        )
        ended = {job.comment[-5:] for job in night.jobs() if job.state == "COMPLETED"}
        before = {r["shard"]: r["finished"] for r in receipts(night.workspace)}
        night.slurm.kill_node("gpu1")
        night.slurm.set_down("gpu1")
        assert run.wait(timeout=300) == 0, (night.workspace.root / "run.log").read_text()
    finally:
        night.slurm.restore_node("gpu1")
    assert any(job.state == "NODE_FAIL" for job in night.jobs())
    after = {r["shard"]: r["finished"] for r in receipts(night.workspace)}
    assert {shard: after[shard] for shard in ended} == {shard: before[shard] for shard in ended}
    assert np.array_equal(night.workspace.load("sum.npy"), sum_of_squares(stack))


def test_ctrl_c_leaves_no_job(night: Night) -> None:
    """Interrupting snakemake empties the queue and says how to go on."""
    night.folder_of(4)
    night.workspace.configure(input="stack", shards=4, materialize=False)
    run = night.workspace.start(*QUICK, "--precommand", "sleep 120", profile="slurm")
    night.wait_for("a shard runs", lambda: bool(night.running("multiply")))
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=60) != 0
    night.wait_for("the queue is empty", lambda: all(job.finished for job in night.jobs()), 60)
    assert "To run just what is missing" in (night.workspace.root / "run.log").read_text()


def test_a_killed_snakemake_never_costs_a_shard_twice(night: Night) -> None:
    """Beside living jobs of a killed run a new one does not start; after them it only reduces."""
    stack = night.folder_of(3)
    night.workspace.configure(input="stack", shards=3, materialize=False)
    run = night.workspace.start(*SLOW_JOBS, profile="slurm")
    night.wait_for("all shards run", lambda: len(night.running("multiply")) == 3)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert night.workspace.run("--unlock", profile="slurm").code == 0
    refused = night.workspace.run(*QUICK, profile="slurm")
    assert refused.code == 75
    assert "3 jobs of an earlier run still wait or work on results" in refused.output

    night.slurm.wait_idle()
    done = night.workspace.run(*QUICK, profile="slurm")
    assert done.code == 0, done.output
    assert night.starts() == Counter({f"multiply 0000{i}": 1 for i in range(3)} | {"reduce": 1})
    assert np.array_equal(night.workspace.load("sum.npy"), sum_of_squares(stack))


def test_bad_input_submits_nothing(night: Night) -> None:
    """A config that cannot work ends with 2 before any job is submitted."""
    night.workspace.configure(input="nowhere.npy")
    done = night.workspace.run(profile="slurm")
    assert done.code == 2
    assert "nowhere.npy does not exist" in done.output
    assert night.jobs() == []


def test_a_dry_run_needs_no_slurm(night: Night, tmp_path: Path) -> None:
    """With a scheduler that only fails, a dry run is as right, and submits or lists no job.

    (The executor plugin asks scontrol and sacct for its own defaults as it is loaded.)
    """
    empty = tmp_path / "bin"
    empty.mkdir()
    for client in ("sbatch", "squeue", "sinfo", "scontrol", "sacct", "sacctmgr"):
        script = empty / client
        script.write_text(f"#!/bin/sh\necho {client} >>{tmp_path}/asked; exit 1\n")
        script.chmod(0o755)
    env = night.slurm.env() | {"PATH": f"{empty}:{os.environ['PATH']}"}
    done = subprocess.run(
        night.workspace.command("--dry-run", profile="slurm"),
        cwd=night.workspace.root,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rule multiply:" in done.stdout + done.stderr
    asked = tmp_path / "asked"
    assert set(asked.read_text().split() if asked.exists() else ()) <= {"scontrol", "sacct"}
