"""The command lines, each run by hand: what they do, what they say, and how they end."""

import json
import os
import resource
import signal
import subprocess
import time

import numpy as np
import pytest
from shardwise import errors
from shardwise.plan import plan as plans

from tests import factories
from tests.factories import command, copied, leftovers, mpirun, run, save, stack

SCRIPTS = ("plan", "synthesize", "shard", "multiply", "ledger", "reduce")


def planned(folder, *words, **over):
    """Run plan.py in a folder with a config file of these keys."""
    (folder / "config.yaml").write_text(json.dumps({"backend": "numpy", **over}))
    return run("plan", *words, cwd=folder)


def test_the_whole_pipeline_by_hand(tmp_path):
    """plan, synthesize, shard, multiply, ledger, reduce: the sum of the products."""
    recipe = {"matrices": 5, "dim": 6, "dtype": "int16", "seed": 3}
    done = planned(tmp_path, synthetic=recipe, shards=2, results="out")
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


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_explains_the_exit_codes(script):
    """--help says what the script does and how it ends."""
    done = run(script, "--help")
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    for words in ("Exit codes: 0 done", "2 bad input", "3 an integrity check", "75 try again"):
        assert words in told


@pytest.mark.parametrize("script", ["shard", "multiply"])
@pytest.mark.parametrize("shard", ["00009", "0", ""])
def test_an_unknown_shard_is_bad_input(tmp_path, script, shard):
    """The message names the shards that there are."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    done = run(script, "--plan", made.results.plan, "--shard", shard)
    assert done.returncode == 2
    assert f"shard {shard!r} is not in" in done.stderr
    assert "00000 to 00001" in done.stderr


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s != "plan"])
def test_a_missing_plan_is_bad_input(tmp_path, script):
    """Without a plan each stage says how to make one."""
    words = ["--shard", "00000"] if script in ("shard", "multiply") else []
    done = run(script, "--plan", tmp_path / "plan.tsv", *words)
    assert done.returncode == 2
    assert "make the plan first" in done.stderr


def test_a_plan_that_is_a_folder_is_bad_input(tmp_path):
    """The results folder in place of its plan.tsv is a mistake to correct, not to try again."""
    made = factories.plan(tmp_path, stack((4, 3, 3)))
    assert run("ledger", "--plan", made.results.root).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--plan"],
        ["--plan", "x", "--sharrd", "1"],
        ["--plan", "x", "--shard", "1", "--mem-mb", "-1"],
        ["--plan", "x", "--shard", "1", "--mem-mb", "2GiB"],
        ["--plan", "x", "--shard", "1", "--all"],
        ["--plan", "x", "--shard", "1", "--array-task"],
        ["--plan", "x", "--all", "--retries", "-1"],
        ["--plan", "x", "--all", "--dispatch", "jobs"],
        ["--plan", "x", "--shard", "0", "--dispatch", "mpi"],
        ["--plan", "x", "--array-task", "--retries", "1"],
    ],
)
def test_wrong_words_are_bad_input(words):
    """A command line that is not understood ends with 2."""
    assert run("multiply", *words).returncode == 2


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (["multiply", "--shard", "0", "--array-first", "3"], "--array-task"),
        (["multiply", "--all", "--array-limit", "3"], "--dispatch array"),
        (["dispatch", "--ranks", "4"], "--dispatch mpi"),
        (["dispatch", "--dispatch", "mpi", "--devices", "2"], "--dispatch pool"),
    ],
)
def test_an_option_that_would_do_nothing_is_bad_input(words, owner):
    """Whoever gives it expects something; the message says what it goes with."""
    done = run(*words, "--plan", "x")
    assert done.returncode == 2
    assert f"{words[-2]} applies only with {owner}" in done.stderr


def test_a_bad_config_is_bad_input(tmp_path):
    """plan.py tells the key and leaves no plan."""
    done = planned(tmp_path, shard=3)
    assert done.returncode == 2
    assert "did you mean shards?" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("text", ["{", "[]", "5", "null"])
def test_a_config_that_is_no_mapping_is_bad_input(tmp_path, text):
    """A config file holds keys and values, and the message says so."""
    (tmp_path / "config.yaml").write_text(text)
    done = run("plan", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "config file config.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_input_is_bad_input(tmp_path):
    """An input that is no array ends with 2 and its name."""
    (tmp_path / "a.npy").write_text("no array")
    done = planned(tmp_path, input="a.npy")
    assert done.returncode == 2
    assert "a.npy is not a .npy file" in done.stderr


def test_a_stack_of_ones_own_is_not_generated(tmp_path):
    """synthesize.py never writes over a plan with an input of its own."""
    made = factories.plan(tmp_path, stack((4, 3, 3)))
    done = run("synthesize", "--plan", made.results.plan)
    assert done.returncode == 2
    assert "nothing to generate" in done.stderr


def test_a_changed_input_fails_the_integrity_check(tmp_path):
    """shard.py ends with 3 where the input is not the planned one."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    os.utime(tmp_path / "input.npy", ns=(1, 1))
    done = run("shard", "--plan", made.results.plan, "--shard", "00000")
    assert done.returncode == 3
    assert "has changed since the plan was made" in done.stderr


def test_a_damaged_plan_fails_the_integrity_check(tmp_path):
    """A plan that was edited by hand ends every stage with 3."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    made.results.plan.write_text(made.results.plan.read_text().replace("\t2\t", "\t3\t", 1))
    assert run("multiply", "--plan", made.results.plan, "--shard", "00000").returncode == 3


def test_a_damaged_shard_fails_the_integrity_check(tmp_path):
    """multiply.py ends with 3, names the shard file, and commits nothing."""
    made = copied(factories.plan(tmp_path, stack((4, 3, 3), "int16"), shards=2))
    path = made.results.shard("00001")
    path.write_bytes(path.read_bytes()[:-1] + b"\x05")
    done = run("multiply", "--plan", made.results.plan, "--shard", "00001")
    assert done.returncode == 3
    assert "00001.npy is damaged" in done.stderr
    assert not list((made.results.root / "products").glob("*.npy*"))
    assert not made.results.receipt("00001").exists()


def test_a_ledger_without_receipts_fails_the_integrity_check(tmp_path):
    """ledger.py ends with 3, names the shards and the command."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    done = run("ledger", "--plan", made.results.plan)
    assert done.returncode == 3
    assert "2 of 2 shards cannot be summed; compute them again: rm -f " in done.stderr


@pytest.mark.parametrize("script", ["shard", "multiply"])
def test_a_plan_that_was_replaced_is_refused(tmp_path, script):
    """--digest compares the shard's row with the one that the run was made for."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    words = ["--plan", made.results.plan, "--shard", "00001", "--digest", "0" * 16]
    done = run(script, *words)
    assert done.returncode == 3
    assert "is not the plan of this run: another command has replaced it" in done.stderr
    assert not made.results.product("00001").exists()


def test_a_nan_is_bad_input(tmp_path):
    """A NaN in the input ends with 2 and one message, no traceback."""
    left = stack((4, 3, 3))
    left[3, 0, 0] = np.nan
    made = copied(factories.plan(tmp_path, left, shards=2))
    done = run("multiply", "--plan", made.results.plan, "--shard", "00001")
    assert done.returncode == 2
    assert "input: matrix 3 holds NaN or Inf" in done.stderr
    assert "Traceback" not in done.stderr


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
    assert not (stage / "00000.npy").exists()
    assert not (stage / "00000.json").exists()
    assert leftovers(tmp_path) == []


def test_the_memory_a_task_may_take(tmp_path):
    """multiply.py --mem-mb: with little or with much, the same product; --help says what it is."""
    made = copied(factories.plan(tmp_path, stack((4, 64, 64)), shards=1))
    seen = set()
    for words in ((), ("--mem-mb", 0), ("--mem-mb", 1), ("--mem-mb", 10**6)):
        done = run("multiply", "--plan", made.results.plan, "--shard", "00000", *words)
        assert done.returncode == 0, done.stderr
        seen.add(made.results.product("00000").read_bytes())
    assert len(seen) == 1
    told = " ".join(run("multiply", "--help").stdout.split())
    assert "--mem-mb N MiB of host memory for all processes" in told


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
    assert "out of host memory" in done.stderr
    assert leftovers(tmp_path) == []


def test_no_thread_is_tried_again():
    """Threads need memory too, and Python's error for one that cannot start says little."""
    assert errors.verdict(RuntimeError("can't start new thread"))[0] == 75
    assert errors.verdict(RuntimeError("another"))[0] == 1


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_signal_leaves_no_product(tmp_path, number, code):
    """A job that is cancelled in the middle removes what it had begun to write."""
    left = stack((60, 512, 512), "int32")  # integers take seconds: the signal comes in the middle
    made = factories.plan(tmp_path, left, shards=1, materialize=False)
    words = command("multiply", "--plan", made.results.plan, "--shard", "00000")
    # A parent that runs in the background ignores Ctrl-C, and so would its children.
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    job = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=default)  # noqa: PLW1509
    while not leftovers(tmp_path) and job.poll() is None:
        time.sleep(0.002)
    job.send_signal(number)
    _, told = job.communicate()
    assert job.returncode == code, told
    assert "ended by SIGTERM" in told or "interrupted" in told
    assert not made.results.product("00000").exists()
    assert not made.results.receipt("00000").exists()
    assert leftovers(tmp_path) == []


def test_the_log_names_the_command_that_does_the_same(tmp_path):
    """The line 'by hand' can be pasted into a shell, whatever the folder is called."""
    folder = tmp_path / "a folder; with 'quotes'"
    made = copied(factories.plan(folder, stack((4, 3, 3)), shards=2))
    done = run("multiply", "--plan", made.results.plan, "--shard", "00000")
    line = next(x for x in done.stderr.splitlines() if "by hand: " in x).split("by hand: ")[1]
    made.results.receipt("00000").unlink()
    python = os.path.dirname(command("multiply")[0])
    again = subprocess.run(
        line, shell=True, check=False, env=os.environ | {"PATH": f"{python}:{os.environ['PATH']}"}
    )
    assert again.returncode == 0
    assert made.results.receipt("00000").exists()
