"""`dispatch: array` under profiles/slurm, on a real Slurm with fake GPUs."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.array_situations import (
    MULTIPLY,
    ArrayNight,
    test_a_dry_run_asks_no_scheduler,
    test_a_scheduler_that_is_away_costs_nothing,
    test_a_task_that_is_killed_without_a_word_is_tried_again,
    test_arrays_are_cut_where_the_cluster_wants_it,
    test_ctrl_c_cancels_the_array,
    test_digits_have_the_same_bits,
    test_killed_tasks_are_tried_again_and_bad_ones_are_not,
    test_many_faults_at_once,
    test_tasks_of_another_plan_are_not_joined,
    test_the_next_run_joins_what_a_killed_one_has_left,
)
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import Job
from tests.workspace import Workspace

__all__ = [  # what is the same under every scheduler
    "test_a_dry_run_asks_no_scheduler",
    "test_a_scheduler_that_is_away_costs_nothing",
    "test_a_task_that_is_killed_without_a_word_is_tried_again",
    "test_arrays_are_cut_where_the_cluster_wants_it",
    "test_ctrl_c_cancels_the_array",
    "test_digits_have_the_same_bits",
    "test_killed_tasks_are_tried_again_and_bad_ones_are_not",
    "test_many_faults_at_once",
    "test_tasks_of_another_plan_are_not_joined",
    "test_the_next_run_joins_what_a_killed_one_has_left",
]

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


class SlurmArrayNight(ArrayNight):
    """Arrays on Slurm."""

    profile = "slurm"
    quick = ("--slurm-init-seconds-before-status-checks", "2")
    clients = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo")
    submits, looks = "sbatch", "squeue"
    config = "scontrol"
    silence = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    full = "1 sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"

    def __init__(self, slurm: SlurmCluster, root: Path) -> None:
        super().__init__(Workspace.create(root, slurm.env()))
        self.slurm = slurm
        self._first = max((job.job_id for job in slurm.jobs()), default=0) + 1

    def _jobs(self) -> list[Job]:
        jobs = [job for job in self.slurm.jobs() if job.array_job_id >= self._first]
        return [job for job in jobs if job.comment.startswith("sw-array-")]

    def tasks(self, state: str) -> dict[str, str]:
        """The tasks in a state: by shard, what cancels them."""
        wanted = {"running": "RUNNING", "waiting": "PENDING"}[state]
        found = [job for job in self._jobs() if job.state == wanted]
        return {f"{job.task:05}": f"{job.array_job_id}_{job.task}" for job in found}

    def cancel(self, task: str) -> None:
        """Cancel a task."""
        self.slurm.call("scancel", task)

    def small(self) -> str:
        """What the cluster's settings are, but for arrays of four tasks at most."""
        said = self.slurm.call("scontrol", "show", "config")
        return re.sub(r"(MaxArraySize\s*=) \d+", r"\1 4", said)

    def arrays(self) -> int:
        """How many arrays of this workspace the scheduler has taken."""
        return len({job.array_job_id for job in self._jobs()})


@pytest.fixture
def night(slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmArrayNight]:
    """A fresh workspace on an idle cluster."""
    night = SlurmArrayNight(slurm, tmp_path / "with a space")
    yield night
    night.stop()
    slurm.cancel_all()


@pytest.mark.fault("a job that is requeued")
def test_a_requeued_task_commits_once(night: SlurmArrayNight) -> None:
    """Slurm's staff requeues a task in its work: it starts again, and leaves one result."""
    night.of(2)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("both run", lambda: len(night.tasks("running")) == 2)
    task = night.tasks("running")["00001"]
    night.slurm.call("scontrol", "update", f"JobId={task}", "Requeue=1")
    night.slurm.call("scontrol", "requeue", task)
    night.wait_for("it waits again", lambda: "00001" not in night.tasks("running"))
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 1, "00001": 1})
    assert night.arrays() == 1


@pytest.mark.nightly  # Slurm counts in minutes
@pytest.mark.timeout(600)
@pytest.mark.fault("a limit of run time")
def test_a_task_out_of_time_is_tried_again(night: SlurmArrayNight) -> None:
    """Slurm ends it, the reason is told, and the next try has its time."""
    night.of(2)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("both run", lambda: len(night.tasks("running")) == 2)
    task = night.tasks("running")["00001"]
    night.slurm.call("scontrol", "update", f"JobId={task}", "TimeLimit=1")
    told = "shard 00001: the scheduler says: TIMEOUT"
    night.wait_for("it is ended", lambda: told in night.log(), 300)
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 1, "00001": 1})


def test_a_task_that_can_never_run_ends_with_the_reason(night: SlurmArrayNight) -> None:
    """Slurm's staff holds a waiting task: it is cancelled and named, the others finish."""
    night.of(8)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("two wait", lambda: len(night.tasks("waiting")) == 2)
    shard, task = sorted(night.tasks("waiting").items())[0]
    night.slurm.call("scontrol", "hold", task)
    night.wait_for("it is given up", lambda: f"shard {shard}: the scheduler" in night.log())
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert f"{shard}: the scheduler says: PENDING (JobHeldAdmin)" in night.output()
    assert len(night.receipts()) == 7
