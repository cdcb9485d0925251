"""How long a job may run, and whether that suffices for another shard."""

import os
import signal
import time

import pytest
from shardwise.work import slurm
from shardwise.work.grid_engine import GridEngine
from shardwise.work.run_time import LEAVE_SECONDS, RunTime, heard, heed

from tests import processes


def test_no_shard_is_begun_that_may_not_end():
    """More than one only once it is known how long a shard takes; none once the job is to end."""
    own = RunTime(time.time() + LEAVE_SECONDS + 100)
    assert (own.suffices(1), own.suffices(2)) == (True, False)
    own.learn(20.0)
    assert (own.suffices(2), own.suffices(6)) == (True, False)
    assert RunTime(None).suffices(2)
    heed()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (own.suffices(1), RunTime(None).suffices(1)) == (False, False)
    heard.clear()


@pytest.mark.parametrize(("words", "seconds"), [
    (["-l", "h_rt=1:02:03"], 3723), (["-l", "gpu=1,s_rt=90,h_rt=::120"], 90),
    (["-l", "h_rt=24::", "-l", "s_rt=INFINITY"], 86400), (["-l", "gpu=1"], None),
])  # fmt: skip
def test_grid_engine_is_asked_for_a_run_time_in_any_of_its_forms(words, seconds):
    """The shorter of the soft and the hard limit counts."""
    assert GridEngine().run_time(words) == seconds


@pytest.mark.parametrize(("job", "day"), [("7", 2), ("12", 3)])
def test_a_task_asks_slurm_for_its_own_end(tmp_path, monkeypatch, job, day):
    """The number of one task is that of its array, for which squeue lists every task.

    A job that an array's task has submitted inherits the variables of that array.
    """
    days = "case $3 in *=7_4) echo 2;; *=12) echo 3;; *) printf '1\\n2\\n';; esac"
    squeue = f"#!/bin/sh\n{days} | sed 's/.*/2030-01-0&T00:00:00/'\n"
    monkeypatch.setenv("PATH", processes.commands(tmp_path, squeue=squeue))
    for name, text in (("JOB_ID", job), ("ARRAY_JOB_ID", "7"), ("ARRAY_TASK_ID", "4")):
        monkeypatch.setenv(f"SLURM_{name}", text)
    assert time.localtime(slurm.end_of_job())[:4] == (2030, 1, day, 0)
