"""What a pool and MPI ranks do in any scheduler's job; each test of one of them imports these.

The fixture `site` is the importing module's own.
"""

import subprocess

import pytest

from tests import processes
from tests.spread import BAD, SHARDS, Site


@pytest.mark.fault("a worker or task that is killed")
def test_a_killed_worker_is_replaced(site: Site) -> None:
    """Its shard is tried again; the job ends well, and no other shard was begun twice."""
    site.spread.put("hold")
    job = site.submit()
    site.all_at_work()
    processes.kill([min(site.spread.workers())])
    processes.until(lambda: "SIGKILL" in site.printed(job))
    site.spread.take_away("hold")
    assert site.finish(job)[0] == 0, site.printed(job)
    site.spread.check()
    starts = sorted(site.spread.starts().values())
    assert sum(starts) <= SHARDS + 2, starts  # its shard, and the one that it was to compute next


@pytest.mark.fault("a rank that is killed")
def test_a_killed_leader_ends_the_job_and_a_rerun_does_the_rest(site: Site) -> None:
    """What was whole stays as it is, and no process of the first job lives on."""
    job = site.submit()
    processes.until(lambda: len(site.spread.receipts()) >= 3)
    site.spread.put("hold")
    processes.kill(site.spread.leaders()[-1:])
    assert site.finish(job)[0] != 0
    processes.until(lambda: not site.spread.living())
    before = site.spread.receipts()
    assert 3 <= len(before) < SHARDS
    site.spread.take_away("hold")
    job = site.submit()
    assert site.finish(job)[0] == 0, site.printed(job)
    site.spread.check()
    after = site.spread.receipts()
    assert {shard: after[shard] for shard in before} == before


def test_a_shard_that_always_fails_costs_itself(site: Site) -> None:
    """All others finish; the job ends with its code, and its last words name it."""
    site.spread.put("bad")
    job = site.submit()
    assert site.finish(job)[0] == 2, site.printed(job)
    site.spread.check(without=[BAD])
    named, last = (line for line in site.printed(job).splitlines() if " ERROR " in line)
    assert f"ERROR shard {BAD:05}: " in named
    assert "this one never works" in named
    assert f"of {SHARDS} shards 1 failed" in last


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_a_cancelled_job_leaves_no_process(site: Site) -> None:
    """Neither ranks nor workers, nor what starts them, on any node; a rerun does the rest."""
    site.spread.put("hold")
    job = site.submit()
    site.all_at_work()
    site.cancel(job)
    processes.until(lambda: not site.spread.living())
    site.spread.take_away("hold")
    job = site.submit()
    assert site.finish(job)[0] == 0, site.printed(job)
    site.spread.check()


@pytest.mark.fault("two runs at once")
def test_a_second_run_is_told_of_the_first(site: Site) -> None:
    """It ends with 75 and damages nothing."""
    site.spread.put("hold")
    first = site.submit()
    site.all_at_work()
    line = site.spread.line("--dispatch", "pool")
    second = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert second.returncode == 75, second.stderr
    assert "its shards are being computed by process" in second.stderr
    site.spread.take_away("hold")
    assert site.finish(first)[0] == 0, site.printed(first)
    site.spread.check()
