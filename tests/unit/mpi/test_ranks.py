"""Ranks: which devices each works with, wherever the launcher puts it; real ranks here."""

import os
import signal

import pytest
from shardwise.mpi.together import seats

from tests import processes
from tests.factories import nightly
from tests.unit.work.test_pool import ended, is_right, planned, started, whole

ALL = ["a", "b", "c", "d"]


@pytest.mark.parametrize(("views", "one", "gpus", "own"), [
    # The k-th rank of a node has its k-th device; the others may be somebody else's.
    ([ALL] * 2, True, True, [[0], [1]]),
    ([["a"]] * 2, True, True, [[0], []]),
    # A scheduler that binds a device to each task leaves nothing to share.
    ([[uuid] for uuid in ALL], False, True, [[0]] * 4),
    # A single rank on a node has all its devices; two share them in turn.
    ([ALL], False, True, [[0, 1, 2, 3]]),
    ([ALL[:3]] * 2, False, True, [[0, 2], [1]]),
    # A node without devices counts as one worker, unless others have devices.
    ([None, None], True, False, [[0], []]),
    ([None, None], False, True, [[], []]),
    ([[]], False, True, [[]]),
])  # fmt: skip
def test_each_rank_has_its_seats(views, one, gpus, own):
    """One worker per seat: the device that the worker looks at first."""
    assert [seats(views, rank, one, gpus) for rank in range(len(views))] == own


SLOW = "time.sleep(0.1)\n(HERE / 'at').touch()"


@pytest.mark.fault("a rank that is killed")
@pytest.mark.parametrize(
    "number", [*map(nightly, (signal.SIGTERM, signal.SIGUSR1)), signal.SIGKILL]
)
def test_signals_and_dead_ranks_leave_no_process(tmp_path, number):
    """The launcher passes signals on; another run computes the shards that are missing."""
    made = planned(tmp_path, SLOW, backend="auto")
    run = started(made, "--dispatch", "mpi", "--ranks", 2)
    processes.until((tmp_path / "at").exists)
    own = [p for p in processes.running() if f"--plan={made.results.plan}" in processes.words(p)]
    if number == signal.SIGKILL:
        os.kill(min(processes.parents(own)), number)
    else:
        run.send_signal(number)
    ended(run, 143 if number == signal.SIGTERM else 75)
    assert len(whole(made)) < 12
    processes.until(lambda: not processes.living(own))
    assert not made.results.claims.exists()
    assert " starting 1 ranks" in ended(started(made, "--dispatch=mpi", "--workers=node"), 0)
    assert is_right(made)
