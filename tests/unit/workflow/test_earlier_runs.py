"""A new run does not start while jobs of an earlier one live; tests/clusters asks real queues."""

import pytest
from shardwise.errors import TryAgain
from shardwise.files.paths import Results
from shardwise.records import locks
from shardwise.work import schedulers
from shardwise.workflow import earlier_runs


def test_no_run_starts_beside_jobs_that_live(tmp_path, monkeypatch):
    """Tasks at work hold a lock, waiting jobs are in a queue; claims of those gone are removed."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "squeue").write_text("#!/bin/sh\ncase $* in *sw-4999*) echo 7;; esac\n")
    (tmp_path / "squeue").chmod(0o755)
    results = Results(tmp_path / "results")
    (results.claims / "run" / "1").mkdir(parents=True)
    # Linux passes 128 KiB at most to squeue in one word: the names of 3,500 runs.
    results.runs.write_text("".join(f"slurm\tsw-{i:040}\n" for i in range(5000)))
    with locks.hold_job_lock(results), pytest.raises(TryAgain, match="still wait or work"):
        earlier_runs.refuse_beside_living(results)
    assert results.claims.exists()
    earlier_runs.lock_results(results)
    earlier_runs._locked.pop().close()  # else it is held until this process ends
    assert not results.claims.exists()
    schedulers.remember(results, "slurm", "sw-4999")
    with pytest.raises(TryAgain, match=r"\(scancel 7\); then"):
        earlier_runs.refuse_beside_living(results)
