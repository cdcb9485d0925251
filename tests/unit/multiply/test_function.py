"""A shard with a user's function, by hand or in a job: the job ends well, or says what happened."""

import contextlib
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from shardwise.plan import plan
from shardwise.plan.plan import Plan
from shardwise.records import failures

from tests import factories, processes

FUNCTION = """
import os, pathlib, subprocess, sys, time
HERE = pathlib.Path(__file__).parent

def own(xp, block):
    if (HERE / "results" / "plan.tsv").exists():  # not where it is tried before there is a plan
        trouble(block)
    return 2 * block

def trouble(block):
"""

LEFT = np.arange(24.0).reshape(4, 2, 3)


def planned(folder: Path, trouble: str, **over: object) -> Plan:
    """A plan of two shards, by relative paths, whose function runs some lines before each batch."""
    (folder / "own.py").write_text(FUNCTION + textwrap.indent(trouble, "    "))
    keys = {"results": "results", "product": "own.py:own", "shards": 2, "materialize": False}
    with contextlib.chdir(folder):
        factories.plan(Path(), LEFT, **keys | over)
    return plan.load(folder / "results" / "plan.tsv")


def run(made: Plan, shard: str = "00000", code: int = 0) -> subprocess.CompletedProcess:
    """Compute a shard as a job does, from the folder of the config; it must end in time."""
    words = ("--plan", "results/plan.tsv", "--shard", shard)
    done = factories.run("multiply", *words, cwd=made.results.root.parent, timeout=60)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize(("trouble", "code", "told"), [
    ("sys.exit(0)", 2, "own.py:own failed on matrices 0 to 1: SystemExit: 0"),
    ("raise MemoryError", 75, "out of host memory"),
    ("os.kill(os.getpid(), 15)", 143, "ended by SIGTERM"),
])  # fmt: skip
def test_a_function_that_fails_fails_its_shard(tmp_path, trouble, code, told):
    """The last line of the log says what the function did."""
    made = planned(tmp_path, trouble)
    name = made.shards["00000"].name
    done = run(made, code=code)
    (error,) = [line for line in done.stderr.splitlines() if " ERROR " in line]
    assert told in error
    assert not made.results.receipt(name).exists()
    failed = failures.read(made.results.failure(name))
    if code == 143:
        assert failed is None  # a task that is told to end leaves no failure file
    else:
        assert (failed.code, told in failed.reason) == (code, True)


def test_children_of_the_function_end_with_the_shard(tmp_path):
    """Whether they have a session of their own or not; the product stays."""
    made = planned(
        tmp_path,
        "subprocess.Popen(['sh', '-c', 'sleep 1000; :', str(HERE)], start_new_session=True)",
    )
    run(made)
    np.testing.assert_array_equal(np.load(factories.file(made, "product")), 2 * LEFT[:2])
    assert not [pid for pid in processes.running() if str(tmp_path) in processes.words(pid)]


def test_a_change_of_the_working_directory_moves_nothing(tmp_path):
    """Results land where they belong, and inputs are found, even after the function's chdir."""
    (elsewhere := tmp_path / "elsewhere" / "results").mkdir(parents=True)
    # Long enough for the progress file of the shard, which is written every two seconds.
    trouble = f"os.chdir({str(elsewhere.parent)!r})\ntime.sleep(2.5)"
    made = planned(tmp_path, trouble)
    run(made)
    np.testing.assert_array_equal(np.load(factories.file(made, "product")), 2 * LEFT[:2])
    assert list(elsewhere.parent.rglob("*")) == [elsewhere]
