"""A shard with a user's function in a job: the job ends well, or says what happened."""

from pathlib import Path

import numpy as np
import pytest
from shardwise.records import failures

from tests import factories, processes
from tests.unit.work.test_pool import planned, pooled

SHARD = ("--shard", "00000")


@pytest.mark.parametrize(("trouble", "code", "told"), [
    ("sys.exit(0)", 2, "own.py:square failed on matrices 0 to 1: SystemExit: 0"),
    ("raise MemoryError", 75, "out of host memory"),
    ("os.kill(os.getpid(), 15)", 143, "ended by SIGTERM"),
])  # fmt: skip
def test_a_function_that_fails_fails_its_shard(tmp_path, trouble, code, told):
    """The last line of the log says what the function did."""
    made = planned(tmp_path, trouble)
    said = pooled(made, *SHARD, code=code, stage="multiply")
    (error,) = [line for line in said.splitlines() if " ERROR " in line]
    assert told in error
    assert not factories.file(made, "receipt").exists()
    failed = failures.read(made.results.failure(made.shards["00000"].name))
    assert (failed is None) == (code == 143)  # a task that is told to end leaves no failure file
    assert code == 143 or (failed.code, told in failed.reason) == (code, True)


def test_what_a_function_leaves_behind_harms_nothing(tmp_path, monkeypatch):
    """Children end with the shard; after a chdir, relative paths still mean the same files."""
    (elsewhere := tmp_path / "elsewhere" / "results").mkdir(parents=True)
    # Long enough for the progress file of the shard, which is written every two seconds.
    trouble = (
        f"__import__('subprocess').Popen(['sh', '-c', 'sleep 1000; :', {str(tmp_path)!r}], "
        "start_new_session=True)\n"
        f"os.chdir({str(elsewhere.parent)!r})\nassert first == 0\ntime.sleep(2.5)"
    )
    monkeypatch.chdir(tmp_path)
    made = planned(Path(), trouble, results="results")
    for shard, code in (("00000", 0), ("00001", 2)):
        own = {"stage": "multiply", "SHARDWISE_LEASES": str(tmp_path / "leases")}
        pooled(made, "--shard", shard, code=code, **own)
    left = np.load("input.npy")[:2]
    np.testing.assert_array_equal(np.load(factories.file(made, "product")), left @ left)
    assert not [pid for pid in processes.running() if str(tmp_path) in processes.words(pid)]
    assert list(elsewhere.parent.rglob("*")) == [elsewhere]
