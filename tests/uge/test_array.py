"""`dispatch: array` under profiles/uge, on a real Grid Engine with fake GPUs."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from shardwise.dispatch import journal
from shardwise.dispatch.schedulers import common, grid_engine
from shardwise.files.paths import Results

from tests import array_situations
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
    test_tasks_of_another_plan_are_not_joined,
    test_the_next_run_joins_what_a_killed_one_has_left,
)
from tests.uge.cluster import UgeCluster
from tests.workspace import Workspace

__all__ = [  # what is the same under every scheduler
    "test_a_dry_run_asks_no_scheduler",
    "test_a_scheduler_that_is_away_costs_nothing",
    "test_a_task_that_is_killed_without_a_word_is_tried_again",
    "test_arrays_are_cut_where_the_cluster_wants_it",
    "test_ctrl_c_cancels_the_array",
    "test_digits_have_the_same_bits",
    "test_killed_tasks_are_tried_again_and_bad_ones_are_not",
    "test_tasks_of_another_plan_are_not_joined",
    "test_the_next_run_joins_what_a_killed_one_has_left",
]

pytestmark = [pytest.mark.uge, pytest.mark.timeout(600)]


class UgeArrayNight(ArrayNight):
    """Arrays on Grid Engine."""

    profile = "uge"
    quick = ("--seconds-between-status-checks", "1")
    clients = ("qsub", "qstat", "qdel", "qacct", "qconf", "qalter")
    submits, looks = "qsub", "qstat"
    config = "qconf"
    silence = "error: commlib error: got select error (Connection refused)"
    full = "25 job rejected: only 4 jobs are allowed per user"

    def __init__(self, uge: UgeCluster, root: Path, **variables: str) -> None:
        super().__init__(Workspace.create(root, uge.env() | variables, uge.enter(root)))
        self.uge = uge

    def tasks(self, state: str, host: str = "") -> dict[str, str]:
        """The tasks in a state, maybe on one host: by shard, what cancels them."""
        arrays = {array.name: array for array in self._noted()}
        letters = {"running": "r", "waiting": "qw"}[state]
        found = {}
        for job in self.uge.jobs():
            if job.name in arrays and job.state == letters and host in job.queue:
                array = arrays[job.name]
                number = array.numbers[grid_engine.indices(array).index(int(job.task))]
                found[f"{number:05}"] = f"{job.job_id}.{job.task}"
        return found

    def _noted(self) -> list[common.Array]:
        return journal.noted(Results(self.workspace.file("")))

    def idle(self) -> bool:
        """Whether no task waits or runs, or is being deleted."""
        names = {array.name for array in self._noted()}
        return not any(job.name in names for job in self.uge.jobs())

    def cancel(self, task: str) -> None:
        """Cancel a task."""
        self.uge.call("qdel", task)

    def small(self) -> str:
        """What the cluster's settings are, but for arrays of four tasks at most."""
        return re.sub(r"(max_aj_tasks\s+)\d+", r"\g<1>4", self.uge.call("qconf", "-sconf"))

    def arrays(self) -> int:
        """How many arrays of this workspace the scheduler has taken."""
        names = {array.name for array in self._noted()}
        known = [*self.uge.jobs(), *self.uge.all_records()]
        return len({job.job_id for job in known if job.name in names})


@pytest.fixture
def night(uge: UgeCluster, tmp_path: Path) -> Iterator[UgeArrayNight]:
    """A fresh workspace on an idle cluster."""
    night = UgeArrayNight(uge, tmp_path / "with a space")
    yield night
    night.stop()
    uge.cancel_all()


@pytest.fixture
def night_of_hosts(uge_hosts: UgeCluster, tmp_path: Path) -> Iterator[UgeArrayNight]:
    """A fresh workspace on an idle cluster of two hosts, where a silent host is soon lost."""
    night = UgeArrayNight(uge_hosts, tmp_path / "with a space", SHARDWISE_UNHEARD_SECONDS="10")
    yield night
    night.stop()
    uge_hosts.cancel_all()


@pytest.mark.fault("a node that goes down")
def test_a_lost_host_costs_no_result(night_of_hosts: UgeArrayNight) -> None:
    """Tasks of a host that crashes run again elsewhere, though qstat lists them as running."""
    night = night_of_hosts
    night.of(4)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("all run", lambda: len(night.tasks("running")) == 4)
    lost = night.tasks("running", "n2")
    assert lost
    night.uge.kill_host("n2")
    night.open_gate()
    try:
        assert run.wait(timeout=300) == 0, night.output()
    finally:
        night.uge.restore_host("n2")
    receipts = night.receipts()
    assert len(receipts) == 4
    assert {receipts[shard]["node"] for shard in lost} == {"n1"}
    night.wait_for("the lost tasks have left the queue", night.idle)


def test_a_task_that_cannot_start_ends_with_the_reason(night: UgeArrayNight) -> None:
    """Its working directory goes away: each try is deleted from the queue, and the reason told."""
    night.of(6)
    run = night.start(*MULTIPLY, *night.gated(), "--retries", "0")
    night.wait_for("two wait", lambda: len(night.tasks("waiting")) == 2)
    waiting = night.tasks("waiting")
    for task in waiting.values():
        night.uge.call("qalter", "-wd", "/nowhere", task.partition(".")[0])
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert night.output().count("/nowhere") >= 2
    assert set(night.receipts()).isdisjoint(waiting)
    night.wait_for("the queue is empty", night.idle)


@pytest.mark.nightly  # the suite has it on Slurm
@functools.wraps(array_situations.test_many_faults_at_once)
def test_many_faults_at_once(night: UgeArrayNight) -> None:
    """The same as under every scheduler, with its marks."""
    array_situations.test_many_faults_at_once(night)
