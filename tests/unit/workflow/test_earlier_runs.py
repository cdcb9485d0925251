"""Beside which jobs of an earlier run a new one does not start."""

import pytest
from shardwise.errors import TryAgain
from shardwise.files.paths import Results
from shardwise.records import locks
from shardwise.work import schedulers
from shardwise.workflow import earlier_runs


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
        def see(living):
            return "see", "cancel " + " ".join(living)

    monkeypatch.setattr(schedulers, "find", lambda _: Scheduler)
    return names


def test_no_run_starts_beside_jobs_that_wait(results, queue):
    """It names those that live, and not those that have gone."""
    for name in ("sw-a-1", "sw-b-1"):
        schedulers.remember(results, "slurm", name)
    earlier_runs.refuse_beside_living(results)
    queue.append("sw-b-1")
    with pytest.raises(
        TryAgain, match=r"1 jobs of an earlier run .* cancel them \(cancel sw-b-1\)"
    ):
        earlier_runs.refuse_beside_living(results)


def test_no_run_starts_beside_tasks_that_work(results):
    """They hold a lock, whatever started them; the claims of those that have gone are removed."""
    (results.claims / "run" / "1").mkdir(parents=True)
    with locks.hold_job_lock(results), pytest.raises(TryAgain, match="still work on"):
        earlier_runs.refuse_beside_living(results)
    assert results.claims.exists()
    earlier_runs.lock_results(results)
    assert not results.claims.exists()


def test_a_line_that_was_cut_off_hides_no_other(results, queue):
    """A crash in the middle of a note: the names before and after it are asked for."""
    schedulers.remember(results, "slurm", "sw-a-1")
    with open(results.runs, "a") as file:
        file.write("slurm\tsw-b;")
    schedulers.remember(results, "slurm", "sw-c-1")
    queue += ["sw-c-1", "sw-b;"]
    with pytest.raises(TryAgain, match=r"1 jobs of an earlier run .* \(cancel sw-c-1\)"):
        earlier_runs.refuse_beside_living(results)
