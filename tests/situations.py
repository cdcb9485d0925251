"""Situations that are the same under every scheduler; each test of a profile imports them.

The fixture `night` is the importing module's own.
"""

import os
import signal
from collections import Counter

import numpy as np
import pytest

from tests.night import FAULTY_SHARDS, Night, sum_of_squares


def test_the_shipped_job_runs_as_it_is(night: Night) -> None:
    """Every kind of job is submitted, and as the profile is quiet, each stage says one line."""
    night.workspace.configure(shards=1)
    done = night.run("--quiet", "rules")
    assert done.code == 0, done.output
    assert "shardwise: multiply: 1 of 1 shards done; then ledger, reduce, report" in done.output
    assert len(done.output.splitlines()) <= 20, done.output
    assert night.starts() == Counter(["synthesize", "shard 00000", "multiply 00000", "reduce"])
    stack = night.workspace.load("input.npy")
    expected = sum((m @ m).astype(np.float64) for m in stack)
    assert np.allclose(night.sum(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_ctrl_c_leaves_no_job(night: Night) -> None:
    """Interrupting snakemake empties the queue and says how to go on."""
    night.folder_of(4)
    night.workspace.configure(input="stack", shards=4, materialize=False)
    run = night.start(*night.held())
    night.wait_for("a shard runs", lambda: night.running("multiply"))
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=300) != 0
    night.wait_for("the queue is empty", night.idle)
    assert "To run just what is missing" in night.output()


@pytest.mark.fault("snakemake killed by -9 and started again")
@pytest.mark.fault("two runs at once")
def test_a_killed_snakemake_never_costs_a_shard_twice(night: Night) -> None:
    """Beside living jobs of a killed run a new one does not start; after them it only reduces."""
    stack = night.folder_of(2)
    night.workspace.configure(input="stack", shards=2, materialize=False)
    run = night.start(*night.held())
    night.wait_for("all shards run", lambda: len(night.running("multiply")) == 2)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert night.run("--unlock").code == 0
    refused = night.run()
    assert refused.code == 75
    assert "2 jobs of an earlier run still wait or work on results/default" in refused.output

    night.release()
    night.wait_for("the queue is empty", night.idle)
    done = night.run()
    assert done.code == 0, done.output
    assert night.starts() == Counter({f"multiply 0000{i}": 1 for i in range(2)} | {"reduce": 1})
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@pytest.mark.nightly
@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.fault("a submission that fails k times")
@pytest.mark.fault("a full queue")
@pytest.mark.fault("a poison shard")
@pytest.mark.fault("a host out of memory")
def test_many_faults_at_once(night: Night) -> None:
    """Submissions fail, answers are rubbish, shards die: the poisonous one is lost, no other."""
    stack = night.folder_of(FAULTY_SHARDS)
    product = night.faulty(stack)
    night.workspace.configure(
        input="stack", shards=FAULTY_SHARDS, materialize=False, product=product
    )
    run = night.start_in_trouble()
    assert run.wait(timeout=300) != 0
    output = night.output()
    words = output[output.index("shardwise: not finished: 5 of 6 shards") :]
    assert "failed: multiply 00001: " in words
    starts = night.journal()
    # A submission that fails is a try under Slurm, whose plugin does not repeat it.
    assert starts["00001"] in (2, 3)
    assert {starts[shard] for shard in ("00002", "00003")} == {2}
    assert {starts[shard] for shard in ("00000", "00004", "00005")} == {1}

    (night.workspace.root / "poison.over").touch()
    done = night.run()
    assert done.code == 0, done.output
    assert night.journal() - starts == Counter({"00001": 1})
    assert np.array_equal(night.sum(), sum_of_squares(stack))


def test_bad_input_submits_nothing(night: Night) -> None:
    """A config that cannot work ends with 2 before any job is submitted."""
    night.workspace.configure(input="nowhere.npy")
    done = night.run()
    assert done.code == 2
    assert "nowhere.npy does not exist" in done.output
    assert not night.starts()


def test_bad_input_in_a_shard_is_tried_once(night: Night) -> None:
    """Its failure is final: no further try is submitted; the next run tries it again, once."""
    night.folder_of(2)
    np.save(night.matrix(1), np.full((5, 5), np.nan))
    night.workspace.configure(input="stack", shards=2, materialize=False)
    for tries in (1, 2):
        done = night.run()
        assert done.code != 0
        assert "matrix 1 holds NaN or Inf" in done.output
        assert night.starts() == Counter({"multiply 00000": 1, "multiply 00001": tries})
