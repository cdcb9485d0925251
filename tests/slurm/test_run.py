"""The main job under profiles/slurm, on a real Slurm with fake GPUs: good runs and bad nights."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import impatient
from tests.night import Night, sum_of_squares
from tests.situations import (
    test_a_killed_snakemake_never_costs_a_shard_twice,
    test_bad_input_in_a_shard_is_tried_once,
    test_bad_input_submits_nothing,
    test_ctrl_c_leaves_no_job,
    test_many_faults_at_once,
    test_the_shipped_job_runs_as_it_is,
)
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import Job
from tests.workspace import Workspace

__all__ = [  # what is the same under every scheduler
    "test_a_killed_snakemake_never_costs_a_shard_twice",
    "test_bad_input_in_a_shard_is_tried_once",
    "test_bad_input_submits_nothing",
    "test_ctrl_c_leaves_no_job",
    "test_many_faults_at_once",
    "test_the_shipped_job_runs_as_it_is",
]

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

CLIENTS = ("sbatch", "squeue", "sinfo", "scontrol", "sacct", "sacctmgr")


class SlurmNight(Night):
    """A workspace on Slurm, and the jobs that were submitted since it began."""

    profile = "slurm"
    quick = ("--slurm-init-seconds-before-status-checks", "2")
    clients = CLIENTS
    submits, looks = "sbatch", "squeue"
    silence = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    full = "1 sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"

    def __init__(self, slurm: SlurmCluster, root: Path) -> None:
        super().__init__(Workspace.create(root, slurm.env() | impatient.environment()))
        self.slurm = slurm
        self._first = max((job.job_id for job in slurm.jobs()), default=0) + 1

    def jobs(self) -> list[Job]:
        """The jobs of this workspace, finished ones too."""
        return [job for job in self.slurm.jobs() if job.job_id >= self._first]

    def starts(self) -> Counter[str]:
        """How often each job was submitted, as ``rule`` or ``rule shard``."""
        return Counter(name(job) for job in self.jobs())

    def running(self, job: str) -> list[int]:
        """The numbers of the running jobs of a rule, or of ``rule shard``."""
        running = [j for j in self.jobs() if j.state == "RUNNING"]
        return [j.job_id for j in running if f"{name(j)} ".startswith(f"{job} ")]

    def idle(self) -> bool:
        """Whether no job of this workspace waits or runs."""
        return all(job.finished for job in self.jobs())


def name(job: Job) -> str:
    """What a job does, as ``rule`` or ``rule shard``."""
    return job.comment.removeprefix("rule_").replace("_wildcards_", " ")


@pytest.fixture
def night(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmNight]:
    """A fresh workspace on an idle cluster."""
    night = SlurmNight(slurm, tmp_path / "with a space")
    yield night
    night.stop()
    slurm.cancel_all()


def test_every_shard_has_a_device_of_its_own(night: SlurmNight) -> None:
    """8 shards, 6 devices, the MPI reduce: one start a job, one shard a device at once; the sum."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    night.workspace.configure(input="digits.npy", shards=8, materialize=False)
    done = night.run(timeout=500)
    assert done.code == 0, done.output
    assert np.array_equal(night.sum(), sum_of_squares(digits))

    multiplied = [f"multiply {i:05}" for i in range(8)]
    assert night.starts() == Counter([*multiplied, "reduce"])
    assert {name(job) for job in night.jobs() if "gpu" in job.gres} == set(multiplied)
    used = [device.split("/") for device in night.uses("granted")]
    assert all(device.isdigit() for _, device in used), f"not exactly one device each: {used}"
    assert {node for node, _ in used} <= {"gpu1", "gpu2"}
    assert len(used) > 1, "the shards should have spread over devices"
    journals = night.workspace.file("logs/multiply").glob("*.starts")
    assert [path.read_text().count("\n") for path in journals] == [1] * 8
    assert "multiply: 8 of 8 shards done" in done.output


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_a_bad_night_costs_its_own_shards_only(night: SlurmNight) -> None:
    """A cancelled shard and one that always fails: the others finish, one rerun heals."""
    stack = night.folder_of(8)
    np.save(night.matrix(5), np.full((5, 5), np.nan))
    night.workspace.configure(input="stack", shards=4, materialize=False)
    run = night.start(*night.held(), "--retries", "0")
    night.wait_for("shard 00001 runs", lambda: night.running("multiply 00001"))
    night.slurm.call("scancel", *map(str, night.running("multiply 00001")))
    night.release()
    assert run.wait(timeout=300) == 1
    assert set(night.receipts()) == {"00000", "00003"}
    assert not night.workspace.file("sum.npy").exists()
    output = night.output()
    words = output[output.index("shardwise: not finished: 2 of 4 shards") :]
    assert "failed: multiply 00001: the scheduler says CANCELLED" in words
    assert "failed: multiply 00002: " in words
    assert "matrix 5 holds NaN or Inf" in words
    assert "log: results/default/logs/multiply/00002.log" in words
    assert f"cd '{night.workspace.root}' && " in words

    np.save(night.matrix(5), stack[5])
    before = night.starts()
    done = night.run()
    assert done.code == 0, done.output
    again = {"multiply 00001": 1, "multiply 00002": 1, "reduce": 1}
    assert night.starts() - before == Counter(again)
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@pytest.mark.fault("a node that goes down")
def test_a_lost_node_costs_no_result(night: SlurmNight) -> None:
    """Jobs of a node that crashes run again elsewhere; what was finished stays."""
    stack = night.folder_of(5)
    night.workspace.configure(input="stack", shards=5, materialize=False)
    run = night.start(*night.held())

    def on_gpu1(state: str) -> list[int]:
        return [j.job_id for j in night.jobs() if (j.nodes, j.state) == ("gpu1", state)]

    try:
        night.wait_for("gpu1 works on four shards", lambda: len(on_gpu1("RUNNING")) == 4)
        night.release(on_gpu1("RUNNING")[0])
        night.wait_for("it has finished one of them", lambda: on_gpu1("COMPLETED"))
        ended = {job.comment[-5:] for job in night.jobs() if job.state == "COMPLETED"}
        before = night.receipts()
        night.slurm.kill_node("gpu1")
        night.slurm.set_down("gpu1")
        night.release()
        assert run.wait(timeout=300) == 0, night.output()
    finally:
        night.slurm.restore_node("gpu1")
    assert any(job.state == "NODE_FAIL" for job in night.jobs())
    after = night.receipts()
    assert {shard: after[shard] for shard in ended} == {shard: before[shard] for shard in ended}
    assert np.array_equal(night.sum(), sum_of_squares(stack))


WAITING_PRODUCT = """
import time
from pathlib import Path


def square(xp, block):
    # Not as it is tried: then there is no plan.
    while Path("results/default/plan.tsv").exists() and not Path("go").exists():
        time.sleep(0.1)
    return block @ block
"""


@pytest.mark.fault("a scheduler that answers nothing")
def test_a_controller_killed_by_9_and_started_again_costs_nothing(night: SlurmNight) -> None:
    """Shards end while nobody answers, another is submitted later: none is lost or done twice."""
    stack = night.folder_of(4)
    (night.workspace.root / "mine.py").write_text(WAITING_PRODUCT)
    own = {"input": "stack", "product": "mine.py:square", "shards": 4, "materialize": False}
    night.workspace.configure(**own)
    # A task that Slurm refuses before it begins is submitted once more, see `refused`.
    run = night.start("--jobs", "3", "--retries", "3")
    journals = night.workspace.file("logs/multiply")
    night.wait_for("three shards work", lambda: len([*journals.glob("*.starts")]) == 3)
    time.sleep(8)  # Slurm saves its jobs every five seconds: those that it forgets are lost
    night.slurm.kill_controller()
    try:
        (night.workspace.root / "go").touch()
        night.wait_for("it is said", lambda: "shardwise: Slurm does not answer" in night.output())
    finally:
        night.slurm.start_controller()
    assert run.wait(timeout=280) == 0, night.output()
    assert [len(path.read_text().splitlines()) for path in journals.glob("*.starts")] == [1] * 4
    once = Counter([*(f"multiply {i:05}" for i in range(4)), "reduce"])
    assert night.starts() == once + refused(night)
    assert np.array_equal(night.sum(), sum_of_squares(stack))


def refused(night: SlurmNight) -> Counter[str]:
    """How often Slurm itself has refused to begin a task that it had accepted, by ``rule shard``.

    A new controller has no devices of a node before that has told it of them.
    """
    logs = night.workspace.file(".snakemake/slurm_logs/rule_multiply").glob("*/*.log")
    said = "Unable to create step for job"
    return Counter(f"multiply {log.parent.name}" for log in logs if said in log.read_text())


@pytest.mark.nightly
@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
def test_an_unknown_job_proves_itself_by_its_files(night: SlurmNight) -> None:
    """UNKNOWN counts as success to the plugin: one that works on is not repeated, a dead one is."""
    stack = night.folder_of(2)
    night.workspace.configure(input="stack", shards=2, materialize=False)
    shims = night.shim()
    run = night.start(*night.held(), "--latency-wait", "10")
    night.wait_for("both run", lambda: len(night.running("multiply")) == 2)
    dead, living = (night.running(f"multiply {shard}")[0] for shard in ("00000", "00001"))
    night.slurm.call("scancel", str(dead))
    (shims / "squeue.next").write_text("UNKNOWN\n")
    night.wait_for("Slurm has said so", lambda: not (shims / "squeue.next").read_text())
    night.release(living)
    night.wait_for("it has its product", lambda: "00001" in night.receipts())
    night.release()
    assert run.wait(timeout=500) == 0, night.output()
    assert night.starts() == Counter({"multiply 00000": 2, "multiply 00001": 1, "reduce": 1})
    assert np.array_equal(night.sum(), sum_of_squares(stack))


def test_a_dry_run_needs_no_slurm(night: SlurmNight, tmp_path: Path) -> None:
    """With a scheduler that only fails, a dry run is as right, and submits or lists no job.

    (The executor plugin asks scontrol and sacct for its own defaults as it is loaded.)
    """
    assert night.asked_by_a_dry_run(CLIENTS, tmp_path / "bin") <= {"scontrol", "sacct"}
