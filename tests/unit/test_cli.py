"""The command lines, each run by hand: what they do, what they say, and how they end."""

import json
import os
import resource
import signal
import subprocess
import time

import numpy as np
import pytest
from shardwise import errors, host
from shardwise.errors import InputError
from shardwise.plan import plan as plans

from tests import factories
from tests.factories import command, copied, leftovers, mpirun, run, save, stack
from tests.hostile import bad_inputs


def test_the_whole_pipeline_by_hand(tmp_path):
    """plan, synthesize, shard, multiply, ledger, reduce: the sum of the products."""
    recipe = {"matrices": 5, "dim": 6, "dtype": "int16", "seed": 3}
    config = {"backend": "numpy", "synthetic": recipe, "shards": 2, "results": "out"}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = run("plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "in 2 shards" in done.stderr
    assert "by hand: cd " in done.stderr
    plan = tmp_path / "out" / "plan.tsv"
    lines = [
        ("synthesize",),
        *((stage, "--shard", s) for stage in ("shard", "multiply") for s in ("00000", "00001")),
        ("ledger",),
    ]
    for script, *words in lines:
        done = run(script, "--plan", plan, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    made = plans.load(plan)
    done = mpirun(2, made, "--ranks", 2)
    assert done.returncode == 0, done.stderr
    left = np.load(tmp_path / "out" / "input.npy").astype("int64")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "sum.npy"), (left @ left).sum(axis=0))
    assert leftovers(tmp_path) == []


def test_help_explains_the_exit_codes():
    """--help says what a stage does and how it ends."""
    done = run("multiply", "--help")
    told = " ".join(done.stdout.split())
    for words in ("Exit codes: 0 done", "2 bad input", "3 an integrity check", "75 try again"):
        assert words in told


def test_what_has_no_meaning_is_bad_input(tmp_path):
    """Wrong words, a folder in place of plan.tsv, a stage without a use: nothing to try again.

    `tests/hostile` has what else is bad.
    """
    made = factories.plan(tmp_path, stack((4, 3, 3)))
    for words in (
        ["multiply", "--plan", "x", "--sharrd", "1"],
        ["ledger", "--pla", made.results.plan],  # an abbreviation
        ["dispatch", "--plan", "x", "--retries", "-1"],
        ["dispatch", "--plan", "x", "--dispatch", "jobs"],
        ["ledger", "--plan", made.results.root],
        ["synthesize", "--plan", made.results.plan],
    ):
        assert bad_inputs.through(*map(str, words))[0] == 2


@pytest.mark.parametrize("script", ["shard", "multiply"])
def test_a_plan_that_was_replaced_is_refused(tmp_path, script):
    """--key compares the shard's key with the one that the run was made for."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    words = ["--plan", str(made.results.plan), "--shard", "00001", "--key", "0" * 12]
    code, said = bad_inputs.through(script, *words)
    assert code == 3
    assert "is not the plan of this run: another command has replaced it" in said
    assert not factories.file(made, "product", "00001").exists()


@pytest.mark.parametrize("script", ["shard", "multiply"])
def test_a_disk_that_takes_no_more_is_tried_again(tmp_path, script):
    """A write that fails ends with 75 and leaves nothing behind."""
    made = factories.plan(tmp_path, stack((4, 64, 64)), shards=1, materialize=script == "shard")
    done = run(
        script, "--plan", made.results.plan, "--shard", "00000",
        # Python would cut its own compiled modules short, which nobody could import afterwards.
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert "File too large: the file needs 69632 bytes" in done.stderr
    stage = made.results.root / ("shards" if script == "shard" else "products")
    assert not list(stage.iterdir())


def test_the_memory_a_task_may_take(tmp_path):
    """multiply.py --mem-mb: with little or with much, the same product."""
    made = copied(factories.plan(tmp_path, stack((4, 64, 64)), shards=1))
    seen = set()
    for words in (("--mem-mb", 0), ("--mem-mb", 10**6)):
        done = run("multiply", "--plan", made.results.plan, "--shard", "00000", *words)
        assert done.returncode == 0, done.stderr
        seen.add(factories.file(made, "product").read_bytes())
    assert len(seen) == 1


def test_no_memory_is_tried_again(tmp_path):
    """A matrix that does not fit into the memory granted ends with 75."""
    left = save(tmp_path / "a.npy", np.zeros((1, 6000, 6000), "float64"))
    made = factories.plan(tmp_path, input=str(left), shards=1, materialize=False)
    limit = 700 * 2**20
    done = run(
        "multiply", "--plan", made.results.plan, "--shard", "00000",
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert "but this machine has less" in done.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("x"), 2), (errors.BadMatrix("x", "y", "input", 0), 2),
        (errors.IntegrityError("x"), 3), (errors.TryAgain("x"), 75), (errors.DeviceFailed("x"), 75),
        (MemoryError(), 75), (OSError(5, "x"), 75), (PermissionError(13, "x"), 2),
        (errors.Terminated(), 143), (KeyboardInterrupt(), 130), (RuntimeError("x"), 1),
    ],
)  # fmt: skip
def test_each_error_has_one_exit_code(error, code):
    """Four classes of ours, and what Python, the disk and signals raise."""
    assert errors.verdict(error)[0] == code
    kinds = {k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)}
    direct = {kind for kind in kinds if kind.__bases__ == (errors.ShardwiseError,)}
    assert {k.__name__ for k in direct} == {
        "InputError", "IntegrityError", "TryAgain", "DeviceFailed",
    }  # fmt: skip
    assert kinds - direct == {errors.ShardwiseError, errors.BadMatrix}


def test_a_limit_of_processes_is_named():
    """It is no lack of memory; Python's own words for a thread or a fork say little."""
    for error in (RuntimeError("can't start new thread"), BlockingIOError(11, "Try again")):
        code, words = errors.verdict(error)
        assert (code, "ulimit -u" in words, "pids.max" in words) == (75, True, True)
    assert errors.verdict(RuntimeError("another"))[0] == 1


def test_a_package_that_does_not_load_names_what_may_be_why(monkeypatch):
    """The first reason, and the variables by which another copy is found; our own is a fault."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/site/lib")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    error = ImportError("no numpy for pandas")
    error.__cause__ = ImportError("libz.so.1:\nfile too short")
    assert errors.verdict(error) == (
        2, "a package does not load: libz.so.1: file too short; unset what names another: "
        "LD_LIBRARY_PATH=/site/lib",
    )  # fmt: skip
    assert errors.verdict(ImportError("x", name="shardwise.plan"))[0] == 1


def test_ranks_that_the_shared_memory_cannot_hold_are_refused(tmp_path):
    """With what it has, in a container perhaps 64 MiB. One rank needs none."""
    with pytest.raises(InputError, match=r"reduce.ranks: 10+ ranks need .* has \d+ MiB free"):
        host.refuse_small_shared_memory(10**9, "reduce.ranks", str(tmp_path))
    for ranks, folder in ((1, "/proc"), (10**9, str(tmp_path / "none"))):
        host.refuse_small_shared_memory(ranks, "reduce.ranks", folder)


def test_ctrl_c_leaves_no_product(tmp_path):
    """A job that is interrupted in the middle removes what it had begun to write.

    tests/faults has SIGTERM, at any moment.
    """
    left = stack((60, 512, 512), "int32")  # integers take seconds: the signal comes in the middle
    made = factories.plan(tmp_path, left, shards=1, materialize=False)
    words = command("multiply", "--plan", made.results.plan, "--shard", "00000")
    # A parent that runs in the background ignores Ctrl-C, and so would its children.
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    job = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=default)  # noqa: PLW1509
    while not leftovers(tmp_path) and job.poll() is None:
        time.sleep(0.002)
    job.send_signal(signal.SIGINT)
    _, told = job.communicate()
    assert job.returncode == 130, told
    assert "interrupted" in told
    assert not factories.file(made, "product").exists()
    assert not factories.file(made, "receipt").exists()
    assert leftovers(tmp_path) == []


def test_the_log_names_the_command_that_does_the_same(tmp_path):
    """The line 'by hand' can be pasted into a shell, whatever the folder is called."""
    folder = tmp_path / "a folder; with 'quotes'"
    made = copied(factories.plan(folder, stack((4, 3, 3)), shards=2))
    done = run("multiply", "--plan", made.results.plan, "--shard", "00000")
    line = next(x for x in done.stderr.splitlines() if "by hand: " in x).split("by hand: ")[1]
    factories.file(made, "receipt").unlink()
    python = os.path.dirname(command("multiply")[0])
    again = subprocess.run(
        line, shell=True, check=False, env=os.environ | {"PATH": f"{python}:{os.environ['PATH']}"}
    )
    assert again.returncode == 0
    assert factories.file(made, "receipt").exists()
