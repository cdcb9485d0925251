"""How long a job may run, and whether that suffices for another shard."""

import os
import signal
import time

from shardwise.work.run_time import LEAVE_SECONDS, RunTime, heard, heed


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
