"""The command lines, each run by hand: what they do, what they say, and how they end."""

import json

import numpy as np
import pytest
from shardwise import errors
from shardwise.plan import plan as plan_file

from tests import factories
from tests.factories import leftovers, mpirun, run, stack
from tests.hostile import bad_inputs


def test_the_whole_pipeline_by_hand(tmp_path):
    """plan, synthesize, shard, multiply, ledger, reduce: the sum of the products."""
    wanted = {"matrices": 5, "dim": 6, "dtype": "int16", "seed": 3}
    config = {"backend": "numpy", "synthetic": wanted, "shards": 2, "results": "out"}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = run("plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = tmp_path / "out" / "plan.tsv"
    shards = [(stage, "--shard", s) for stage in ("shard", "multiply") for s in ("00000", "00001")]
    for script, *words in (("synthesize",), *shards, ("ledger",)):
        done = run(script, "--plan", plan, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    done = mpirun(2, plan_file.load(plan))
    assert done.returncode == 0, done.stderr
    left = np.load(tmp_path / "out" / "input.npy").astype("int64")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "sum.npy"), (left @ left).sum(axis=0))
    assert leftovers(tmp_path) == []


def test_what_has_no_meaning_is_bad_input(tmp_path):
    """Wrong options, or a stage that the plan does not need, exit with 2; more in tests/hostile."""
    made = factories.plan(tmp_path, stack((4, 3, 3)))
    for words in (
        ["ledger", "--pla", made.results.plan],  # an abbreviation
        ["dispatch", "--plan", "x", "--ranks", "-1"],
        ["dispatch", "--plan", "x", "--dispatch", "jobs"],
        ["ledger", "--plan", made.results.root],
        ["synthesize", "--plan", made.results.plan],
    ):
        assert bad_inputs.through(*map(str, words))[0] == 2


@pytest.mark.parametrize("script", ["shard", "multiply"])
def test_a_plan_that_was_replaced_is_refused(tmp_path, script):
    """A stage refuses a shard whose key is not the --key that its run was made for."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    words = ["--plan", str(made.results.plan), "--shard", "00001", "--key", "0" * 12]
    code, said = bad_inputs.through(script, *words)
    assert code == 3
    assert "another command has replaced the plan of this run" in said
    assert not factories.file(made, "product", "00001").exists()


@pytest.mark.parametrize(("error", "code", "words"), [
    (errors.InputError("x"), 2, "x"), (errors.BadMatrix("x", "y", 0), 2, "x"),
    (errors.IntegrityError("x"), 3, "x"), (errors.TryAgain("x"), 75, "x"),
    (errors.DeviceFailed("x"), 75, "x"), (MemoryError(), 75, "memory"),
    (OSError(5, "x"), 75, "x"), (PermissionError(13, "x"), 2, "x"),
    (errors.Terminated(), 143, ""), (KeyboardInterrupt(), 130, ""),
    (RuntimeError("x"), 1, ""), (RuntimeError("can't start new thread"), 75, "ulimit -u"),
    (BlockingIOError(11, "Try again"), 75, "pids.max"),
    (ImportError("x", name="shardwise.plan"), 1, ""),
    (ImportError("x\ny", name="numpy"), 2, "does not load: x y; pip install"),
])  # fmt: skip
def test_each_error_has_one_exit_code(error, code, words):
    """Four classes of ours, and what Python, the disk and signals raise."""
    found, told = errors.verdict(error)
    assert (found, words in told) == (code, True), told
