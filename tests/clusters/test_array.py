"""`dispatch: array` on a real scheduler; most stop before the reduce, as it is the same job."""

import os
import signal
from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import processes
from tests.clusters.conftest import SLURM_FIRST
from tests.clusters.night import FAULTY_SHARDS, MULTIPLY, ArrayNight, sum_of_squares

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def night(array_night: ArrayNight) -> ArrayNight:
    """A fresh workspace on an idle cluster."""
    return array_night


def test_digits_have_the_same_bits(night: ArrayNight) -> None:
    """7 shards, three at once, copied by their own tasks: one array, and NumPy's very sum."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    night.workspace.configure(input="digits.npy", shards=7, dispatch="array", array_limit=3)
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    summed = night.workspace.run()  # the reduce is the same job under every dispatch: here, soon
    assert summed.code == 0, summed.output
    assert night.sum().tobytes() == sum_of_squares(digits).tobytes()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(7)})
    assert night.arrays() == 1
    assert night.at_once() <= 3
    assert "7 of 7 shards done" in done.output
    assert night.run().jobs == set(), "another run finds everything done"


@SLURM_FIRST
def test_tasks_pull_shards(night: ArrayNight) -> None:
    """40 shards and 3 tasks: each is computed once, by tasks that keep what they have loaded."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    night.workspace.configure(input="digits.npy", shards=40, dispatch="array", array_tasks=3)
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output + night.log()
    assert "40 shards submitted to 3 tasks" in night.log()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(40)})
    assert night.arrays() == 1
    assert len({r["process"] for r in night.receipts().values()}) <= 3


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.fault("a worker or task that is killed")
def test_killed_tasks_are_tried_again_and_bad_ones_are_not(night: ArrayNight) -> None:
    """A cancelled task, one killed without a word, a NaN: the end names the one that is lost."""
    stack = night.of(6)
    np.save(night.matrix(4), np.full((5, 5), np.nan))
    run = night.start(*MULTIPLY, *night.gated())
    gate = f"{night.workspace.root}/gate.sh 00002"
    gates: set[int] = set()

    def at_the_gate() -> bool:  # the scheduler calls a task running before its script has begun
        gates.update(pid for pid in processes.running() if gate in " ".join(processes.words(pid)))
        return bool(gates) and {"00001", "00002"} <= set(night.tasks("running"))

    night.wait_for("both run", at_the_gate)
    night.cluster.cancel(night.tasks("running")["00001"])
    processes.kill([*processes.parents(gates), *gates])  # the scripts first: no last words
    for shard, words in (("00001", ""), ("00002", "the scheduler says")):
        night.wait_for("it is tried again", lambda w=f"shard {shard}: {words}": w in night.log())
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert set(night.receipts()) == {f"{i:05}" for i in range(6)} - {"00004"}
    assert night.starts()["00004"] == 1
    words = night.output()[night.output().index("shardwise: not finished: 5 of 6 shards") :]
    assert "00004: " in words
    assert "matrix 4 holds NaN or Inf" in words
    assert "00001" not in words

    np.save(night.matrix(4), stack[4])
    before = night.starts()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts() - before == Counter({"00004": 1})


@SLURM_FIRST
@pytest.mark.fault("snakemake killed by -9 and started again")
@pytest.mark.fault("two runs at once")
def test_the_next_run_joins_what_a_killed_one_has_left(night: ArrayNight) -> None:
    """Snakemake dies, its waiting job ends quietly: the next run waits for the very same tasks."""
    night.of(5)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("tasks run", lambda: night.tasks("running"))
    run.kill()
    run.wait()
    night.wait_for("the job that waits ends", lambda: "has ended; the tasks work on" in night.log())
    assert night.run("--unlock").code == 0

    again = night.start(*MULTIPLY)
    night.wait_for("it joins them", lambda: "5 tasks of an earlier run" in night.log())
    assert night.run(*MULTIPLY, "--nolock").code == 75, "only one run at a time"
    night.open_gate()
    assert again.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(5)})
    assert night.arrays() == 1


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_ctrl_c_cancels_the_array(night: ArrayNight) -> None:
    """Interrupting snakemake empties the queue, and a rerun computes what is missing."""
    night.of(8)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("tasks run", lambda: night.tasks("running"))
    night.open_gate("00000")
    night.wait_for("one is done", night.receipts)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=300) != 0
    night.wait_for("the queue is empty", night.idle)
    night.open_gate()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts()["00000"] == 1
    assert len(night.receipts()) == 8


@pytest.mark.fault("a scheduler that answers nothing")
def test_a_scheduler_that_is_away_costs_nothing(night: ArrayNight) -> None:
    """Its answer to the submission is lost, then it says nothing: one array, one start a shard."""
    night.of(4)
    shims = night.shim()
    (shims / f"{night.cluster.submits}.mute").touch()
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("it is found", lambda: "4 shards submitted" in night.log())
    assert "does not answer (the answer timed out)" in night.log()
    (shims / "away").touch()
    night.wait_for("it is said", lambda: night.cluster.silence in night.log())
    night.open_gate("00000")
    night.wait_for("one is done", night.receipts)
    (shims / "away").unlink()
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(4)})
    assert night.arrays() == 1


@SLURM_FIRST
@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.fault("a submission that fails k times")
@pytest.mark.fault("a full queue")
@pytest.mark.fault("a poison shard")
@pytest.mark.fault("a host out of memory")
def test_many_faults_at_once(night: ArrayNight) -> None:
    """Submissions fail, answers are rubbish, shards die: the poisonous one is lost, no other."""
    stack = night.folder_of(FAULTY_SHARDS)
    product = night.faulty(stack)
    over = {"materialize": False, "dispatch": "array", "product": product}
    night.workspace.configure(input="stack", shards=FAULTY_SHARDS, **over)
    run = night.start_in_trouble(*MULTIPLY)
    assert run.wait(timeout=300) != 0
    output = night.output()
    assert "does not answer (" in output
    assert f"does not answer ({night.cluster.looks} printed " in output
    words = output[output.index("shardwise: not finished: 5 of 6 shards") :]
    assert "failed: multiply 00001: " in words
    tries = {"00001": 3, "00002": 2, "00003": 2}
    assert night.starts() == Counter({f"{i:05}": 1 for i in (0, 4, 5)} | tries)

    (night.workspace.root / "poison.over").touch()
    before = night.starts()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts() - before == Counter({"00001": 1})
    products = [night.workspace.load(f"products/{i:05}.npy") for i in range(FAULTY_SHARDS)]
    assert np.array_equal(np.concatenate(products).sum(axis=0), sum_of_squares(stack))
