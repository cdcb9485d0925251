"""The main job under the profile of a real scheduler, with fake GPUs: good runs and bad nights."""

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import factories
from tests.clusters.cluster import Cluster
from tests.clusters.conftest import GRID_ENGINE_FIRST, SLURM_FIRST
from tests.clusters.night import FAULTY_SHARDS, MULTIPLY, Night, sum_of_squares

pytestmark = pytest.mark.timeout(600)


@pytest.mark.nightly  # by day test_slurm.py spreads its ranks, test_grid_engine.py has an example
def test_the_shipped_job_runs_as_it_is(night: Night) -> None:
    """Every kind of job is submitted, and as the profile is quiet, each stage says one line."""
    night.workspace.configure(shards=1)
    done = night.run("--quiet", "rules")
    assert done.code == 0, done.output
    assert len(done.output.splitlines()) <= 20, done.output
    assert night.starts() == Counter(["synthesize", "shard 00000", "multiply 00000", "reduce"])
    stack = night.workspace.load("input.npy")
    expected = sum((m @ m).astype(np.float64) for m in stack)
    assert np.allclose(night.sum(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.fault("a limit of run time")
@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_a_bad_night_costs_its_own_shards_only(night: Night) -> None:
    """Shards that fail in several ways: the last words tell them apart, one rerun heals."""
    shards = night.cluster.shards_of_a_bad_night
    stack = night.folder_of(shards)
    np.save(night.matrix(0), np.full((5, 5), np.nan))
    night.workspace.configure(input="stack", shards=shards, materialize=False)
    run = night.start(*night.held(), "--retries", "0")
    night.wait_for("all are submitted", lambda: sum(night.starts().values()) == shards)
    night.wait_for("some of them run", lambda: len(night.running()) >= min(shards, 4))
    found = sorted(night.jobs(), key=lambda job: job.job)
    (bad,) = (job for job in found if job.what == "multiply 00000")
    expected = {"00000": ("matrix 0 holds NaN or Inf",)}
    others = [job for job in found if job is not bad]
    for job, words in night.cluster.spoil(others, lambda: night.release(bad)).items():
        expected[job.what.removeprefix("multiply ")] = words
    night.release()
    assert run.wait(timeout=300) == 1
    night.wait_for("no job stays in the queue", night.idle)
    whole = {f"{i:05}" for i in range(shards)} - set(expected)
    assert set(night.receipts()) == whole
    assert not night.workspace.file("sum.npy").exists()
    output = night.output()
    words = output[output.index(f"shardwise: not finished: {len(whole)} of {shards} shards") :]
    told = re.findall(r"  failed: ((?:(?:, )?multiply \d+)+): (.*)\n", words)
    reasons = {shard: why for names, why in told for shard in re.findall(r"\d+", names)}
    assert set(reasons) == set(expected), words
    for shard, parts in expected.items():
        assert [part for part in parts if part not in reasons[shard]] == []
    assert re.search(r"log: results/default/logs/multiply/00000-[0-9a-f]{12}\.log", words)
    assert f"cd '{night.workspace.root}' && " in words

    np.save(night.matrix(0), stack[0])
    done = night.workspace.run()  # what is missing is the same under every profile: here, soon
    assert done.code == 0, done.output
    again = {job for job in done.jobs if job.startswith("multiply")}
    assert again == {f"multiply {shard}" for shard in expected}
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@SLURM_FIRST
@pytest.mark.fault("a node that goes down")
def test_a_lost_node_costs_no_result(night_of_nodes: Night) -> None:
    """Jobs of a node that crashes run again elsewhere; what was finished stays."""
    night, node = night_of_nodes, night_of_nodes.cluster.lost_node
    stack = night.folder_of(4)
    night.workspace.configure(input="stack", shards=4, materialize=False)
    run = night.start(*night.held(), *MULTIPLY)
    try:
        night.wait_for("it works on two", lambda: len(night.in_state("running", node=node)) > 1)
        night.release(night.in_state("running", node=node)[0])
        night.wait_for("it has finished one", lambda: night.in_state("ended", node=node))
        night.wait_for("its products are there", night.receipts)
        before = night.receipts()
        night.cluster.crash(node)
        night.release()
        assert run.wait(timeout=300) == 0, night.output()
    finally:
        night.cluster.restore(node)
    night.wait_for("the lost jobs have left the queue", night.idle)
    after, journal = night.receipts(), night.journal()
    assert {shard: after[shard] for shard in before} == before
    assert {journal[shard] for shard in before} == {1}
    assert sorted(after) == [f"{i:05}" for i in range(4)]
    assert np.array_equal(night.products(), stack @ stack)


@GRID_ENGINE_FIRST
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


WAITING_PRODUCT = """
import time
from pathlib import Path

def square(xp, block):
    # Not as it is tried: then there is no plan.
    while Path("results/default/plan.tsv").exists() and not Path("go").exists():
        time.sleep(0.1)
    return block @ block
"""


@pytest.mark.fault("a scheduler that answers nothing")
def test_a_controller_that_is_killed_costs_nothing(night: Night, tmp_path: Path) -> None:
    """Shards end while nobody answers, another is submitted later: each once, on its own device."""
    stack = night.folder_of(4)
    (night.workspace.root / "mine.py").write_text(WAITING_PRODUCT)
    own = {"input": "stack", "product": "mine.py:square", "shards": 4, "materialize": False}
    night.workspace.configure(**own, reduce={"ranks": 3})
    devices = night.with_devices(4, tmp_path)
    run = night.start("--jobs", "3", "--retries", "3", *devices)
    night.wait_for("three shards work", lambda: len(night.journal()) == 3)
    at_work = time.time()
    night.wait_for("its jobs are saved", lambda: night.cluster.saved_since(at_work))
    night.cluster.kill_controller()
    try:
        (night.workspace.root / "go").touch()
        silent = f"shardwise: {night.cluster.title} does not answer"
        night.wait_for("it is said", lambda: silent in night.output())
    finally:
        night.cluster.start_controller()
    assert run.wait(timeout=280) == 0, night.output()
    assert set(night.journal().values()) == {1}
    once = Counter([*(f"multiply {i:05}" for i in range(4)), "reduce"])
    assert night.starts() == once + refused(night)
    uses = night.uses()
    assert sum(uses.values()) == 4
    assert len(uses) >= 3, f"three devices at least should have been used at once: {uses}"
    assert np.array_equal(night.sum(), sum_of_squares(stack))
    assert json.loads(night.workspace.file("summary.json").read_text())["ranks"] == 3


def refused(night: Night) -> Counter[str]:
    """How often Slurm has refused to begin a task that it had accepted, by ``rule shard``.

    A new controller has no devices of a node before that has told it of them.
    """
    logs = (night.workspace.root / ".snakemake/slurm_logs/rule_multiply").glob("*/*.log")
    said = "Unable to create step for job"
    return Counter(f"multiply {log.parent.name}" for log in logs if said in log.read_text())


def test_the_doctor_names_the_gpus(idle: Cluster, tmp_path: Path) -> None:
    """By kind and node, with the ways to start ranks, and how to look at a node."""
    idle.wait_idle()
    done = factories.run("doctor", "--json", "--time-limit", 60, cwd=tmp_path, env=idle.env())
    told = json.loads(done.stdout)
    assert done.returncode == told["verdict"]["exit_code"]
    own = [finding for finding in told["findings"] if finding["section"] == idle.title.lower()]
    idle.check_doctor(own)


def test_a_dry_run_asks_no_scheduler(night: Night, tmp_path: Path) -> None:
    """With commands that only fail it is as right, and submits or lists no job."""
    night.folder_of(3)
    for dispatch in ("jobs", "array"):
        night.workspace.configure(input="stack", shards=3, materialize=False, dispatch=dispatch)
        asked = night.asked_by_a_dry_run(tmp_path / dispatch)
        assert asked <= night.cluster.no_scheduler
