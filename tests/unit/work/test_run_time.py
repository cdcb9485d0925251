"""How long a job may run, and whether that suffices for another shard."""

import os
import signal
import time

import pytest
from shardwise.work.grid_engine import GridEngine
from shardwise.work.run_time import LEAVE_SECONDS, RunTime, heeding


def test_no_shard_is_begun_that_may_not_end():
    """More than one only once it is known how long a shard takes; none once the job is to end."""
    own = RunTime(time.time() + LEAVE_SECONDS + 100)
    assert (own.suffices(1), own.suffices(2)) == (True, False)
    own.learn(20.0)
    assert (own.suffices(2), own.suffices(6)) == (True, False)
    own.close()
    assert not own.suffices(1)
    assert RunTime(None).suffices(2)


def test_a_warning_reaches_all_who_heed_it():
    """The pool tells its workers; the rounds around it begin no other."""
    heard: list[str] = []
    with heeding(lambda *_: heard.append("rounds")), heeding(lambda *_: heard.append("pool")):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == ["pool", "rounds"]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.mark.parametrize(("words", "seconds"), [
    (["-l", "h_rt=1:02:03"], 3723), (["-l", "gpu=1,s_rt=90,h_rt=::120"], 90),
    (["-l", "gpu=1"], None),
])  # fmt: skip
def test_grid_engine_is_asked_for_a_run_time_in_any_of_its_forms(words, seconds):
    """The shorter of the soft and the hard limit counts."""
    assert GridEngine().run_time(words) == seconds
