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
    """5 shards, two at once, copied by their own tasks: one array, and NumPy's very sum."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    night.workspace.configure(input="digits.npy", shards=5, dispatch="array", array_limit=2)
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    summed = night.workspace.run()  # the reduce is the same job under every dispatch: here, soon
    assert summed.code == 0, summed.output
    assert night.sum().tobytes() == sum_of_squares(digits).tobytes()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(5)})
    assert night.arrays() == 1
    assert night.at_once() <= 2
    night.wait_for("the queue is empty", night.idle)
    assert night.run().jobs == set(), "another run finds everything done"


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.fault("a worker or task that is killed")
def test_killed_tasks_are_tried_again_and_bad_ones_are_not(night: ArrayNight) -> None:
    """A cancelled task, a killed one, a NaN: another round does the rest, the end names one."""
    stack = night.gated(6)
    bad = stack[4].copy()
    bad[1, 1] = np.nan
    np.save(night.matrix(4), bad)
    run = night.start(*MULTIPLY)
    night.wait_for("two run", lambda: len(set(night.at_gate()) - {"00004"}) > 1)
    before = night.at_gate()
    one, other = sorted(set(before) - {"00004"})[:2]  # tasks claim any of the first blocks
    night.cluster.cancel(before[one])
    child = night.process(other)
    processes.kill([*processes.parents([child]), child])
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert set(night.receipts()) == {f"{i:05}" for i in range(6)} - {"00004"}
    words = night.output()[night.output().index("shardwise: not finished: 5 of 6 shards") :]
    assert "multiply 00004: " in words
    assert "matrix 4 holds NaN or Inf" in words
    assert one not in words
    assert night.arrays() == 2

    np.save(night.matrix(4), stack[4])
    before = night.receipts()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert {shard: night.receipts()[shard] for shard in before} == before


@SLURM_FIRST
@pytest.mark.fault("snakemake killed by -9 and started again")
@pytest.mark.fault("two runs at once")
def test_the_next_run_names_what_a_killed_one_has_left(night: ArrayNight) -> None:
    """Snakemake dies, its tasks work on: a new run says how to wait and how to cancel."""
    night.gated(3)
    run = night.start(*MULTIPLY)
    night.wait_for("tasks run", lambda: len(night.at_gate()) == 3)
    assert "another snakemake works on" in night.run(*MULTIPLY).output, "only one run at a time"
    run.kill()
    run.wait()
    refused = night.run(*MULTIPLY)
    assert refused.code == 75
    assert "jobs of an earlier run still wait or work on results/default" in refused.output
    assert f"{night.cluster.cancels} " in refused.output
    night.open_gate()
    night.wait_for("the queue is empty", night.idle)
    night.wait_for("who submitted has ended", lambda: night.run(*MULTIPLY).code == 0)
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(3)})
    assert night.arrays() == 1


@SLURM_FIRST
@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_ctrl_c_cancels_the_array(night: ArrayNight) -> None:
    """Interrupting snakemake empties the queue, and a rerun computes what is missing."""
    night.gated(8)
    run = night.start(*MULTIPLY)
    night.wait_for("tasks run", night.at_gate)
    one = min(night.at_gate())
    night.open_gate(one)
    night.wait_for("one is done", night.receipts)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=300) != 0
    night.wait_for("the queue is empty", night.idle)
    night.open_gate()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts()[one] == 1
    assert len(night.receipts()) == 8


@SLURM_FIRST
@pytest.mark.fault("a submission that fails k times")
@pytest.mark.fault("a full queue")
@pytest.mark.fault("a poison shard")
@pytest.mark.fault("a host out of memory")
def test_many_faults_at_once(night: ArrayNight) -> None:
    """The queue is full, shards die: the poisonous one is lost, no other."""
    stack = night.folder_of(FAULTY_SHARDS)
    product = night.faulty(stack)
    over = {"materialize": False, "dispatch": "array", "product": product}
    night.workspace.configure(input="stack", shards=FAULTY_SHARDS, **over)
    (night.shim() / f"{night.cluster.submits}.next").write_text(f"{night.cluster.full}\n")
    run = night.start(*MULTIPLY)
    assert run.wait(timeout=300) != 0
    output = night.output()
    assert "accepts no more tasks now" in night.log()
    words = output[output.index("shardwise: not finished: 5 of 6 shards") :]
    assert "multiply 00001: " in words
    starts = night.starts()
    assert 3 <= starts["00001"] <= 6
    assert [starts[shard] for shard in ("00002", "00003")] == [2, 2]

    (night.workspace.root / "poison.over").touch()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert np.array_equal(night.products().sum(axis=0), sum_of_squares(stack))
