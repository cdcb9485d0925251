"""Beside which jobs of an earlier run a new one may start: tasks of an array of the same plan."""

import pytest
from shardwise.errors import TryAgain
from shardwise.files.paths import Results
from shardwise.records import locks
from shardwise.workflow import earlier_runs

OURS, OTHER = "a" * 16, "b" * 16


@pytest.fixture
def results(tmp_path):
    """An empty results folder."""
    return Results(tmp_path / "results")


@pytest.fixture
def queue(monkeypatch):
    """A scheduler whose queue holds the jobs of these names."""
    names: list[str] = []

    class Scheduler:
        client = "sh"

        @staticmethod
        def living(asked):
            return [name for name in asked if name in names]

        @staticmethod
        def commands(names, living):
            return "see", "cancel " + " ".join(living)

    monkeypatch.setattr(earlier_runs, "SCHEDULERS", {"slurm": Scheduler})
    return names


def note_array(results, name, digest):
    """Note an array as its dispatch does, before it is submitted."""
    earlier_runs.remember(results, "slurm", name)
    with open(results.arrays, "a") as file:
        file.write(f"slurm\t{name}\t{digest}\tmore\n")


def test_jobs_at_work_are_joined_or_refused(results, queue):
    """The lock of an array's tasks keeps all away but runs that join them; others keep all away."""
    with locks.hold_job_lock(results, array=True):
        earlier_runs.refuse_beside_living(results, joins=OURS)
        with pytest.raises(TryAgain, match="jobs of an earlier run still work on"):
            earlier_runs.refuse_beside_living(results)
    earlier_runs.refuse_beside_living(results)
    with locks.hold_job_lock(results), pytest.raises(TryAgain):
        earlier_runs.refuse_beside_living(results, joins=OURS)


def test_arrays_in_the_queue_are_joined_by_their_own_plan(results, queue, monkeypatch):
    """Those of this plan may live, under dispatch array; no answer says nothing of the others."""
    note_array(results, "ours", OURS)
    note_array(results, "other", OTHER)
    queue[:] = ["ours"]
    earlier_runs.refuse_beside_living(results, joins=OURS)
    for joins in (None, OTHER):
        with pytest.raises(TryAgain, match="cancel ours"):
            earlier_runs.refuse_beside_living(results, joins=joins)
    queue[:] = ["ours", "other"]
    with pytest.raises(TryAgain, match=r"cancel other\)"):
        earlier_runs.refuse_beside_living(results, joins=OURS)

    def away(names):
        raise TryAgain("no answer")

    monkeypatch.setattr(earlier_runs.SCHEDULERS["slurm"], "living", away)
    with pytest.raises(TryAgain, match="does not say whether jobs"):
        earlier_runs.refuse_beside_living(results, joins=OURS)
