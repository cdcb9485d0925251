"""What only Grid Engine has, on a real one: its master, its accounting, and the test cluster."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import processes
from tests.clusters.grid_engine.cluster import GridEngine, what
from tests.clusters.jobs import waiting_ranks
from tests.clusters.night import MULTIPLY, ArrayNight, Night, sum_of_squares

pytestmark = [
    pytest.mark.grid_engine,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["grid_engine"], indirect=True),
]


def change_profile(night: Night, rule: str, old: str, new: str) -> None:
    """Change what a rule asks for, in the workspace's own profile."""
    path = night.workspace.root / "profiles" / "uge" / "config.yaml"
    before, block, after = path.read_text().partition(f"\n  {rule}:")
    assert block, f"the profile has no block of {rule}"
    assert old in after, f"the profile has no {old} in the block of {rule}"
    path.write_text(before + block + after.replace(old, new, 1))


def test_the_digits_on_a_site_that_counts_devices_by_slot(night: Night) -> None:
    """A parallel environment for each shard, a consumable a slot: one line of the profile."""
    digits = load_digits().images
    np.save(night.workspace.root / "examples" / "digits" / "input.npy", digits)
    change_profile(night, "multiply", '"-l gpu=1"', '"-pe smp 2 -l gpuslot=1,gputype=a100"')
    few = ("materialize=False", "shards=2")
    done = night.run("--configfile", "examples/digits/config.yaml", "--config", *few)
    assert done.code == 0, done.output
    night.wait_for("the queue is empty", night.idle)
    shards = {job.job for job in night.jobs()}
    records = [record for record in night.cluster.all_records() if record.job_id in shards]
    slots = {what(record): record.slots for record in records}
    assert slots == {f"multiply {i:05}": 2 for i in range(2)} | {"reduce": 2}
    assert (
        np.load(night.workspace.root / "results/digits/sum.npy").tobytes()
        == sum_of_squares(digits).tobytes()
    )


def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(night):
    """Not when the shards are done: the run ends with 2, and names the line of the profile."""
    change_profile(night, "reduce", '"-pe mpi {ranks}"', '"-pe nope {ranks}"')
    night.folder_of(2)
    night.workspace.configure(input="stack", shards=2)
    done = night.run()
    assert done.code == 2, done.output
    line = 'environment "nope" does not exist (from uge_parallel: "-pe nope {ranks}")'
    assert line in done.output
    assert not night.starts()


@pytest.mark.fault("a node that goes down")
def test_a_lost_host_costs_no_result(array_night_of_nodes: ArrayNight) -> None:
    """Tasks of a host that crashes run again elsewhere, though qstat lists them as running."""
    night = array_night_of_nodes
    night.gated(4)
    run = night.start(*MULTIPLY)
    night.wait_for("all run", lambda: len(night.at_gate()) == 4)
    lost = night.at_gate("n2")
    assert lost
    night.cluster.crash("n2")
    night.open_gate()
    try:
        assert run.wait(timeout=300) == 0, night.output()
    finally:
        night.cluster.restore("n2")
    receipts = night.receipts()
    assert len(receipts) == 4
    assert {receipts[shard]["node"] for shard in lost} == {"n1"}
    night.wait_for("the lost tasks have left the queue", night.idle)


def test_a_task_that_cannot_start_leaves_its_work_to_others(array_night: ArrayNight) -> None:
    """Its working directory goes away: others claim its shards, and it is deleted in the end."""
    night = array_night
    night.gated(6)
    run = night.start(*MULTIPLY)
    night.wait_for("two wait", lambda: len(night.waiting()) == 2 and len(night.at_gate()) == 4)
    number = night.waiting()[0].partition(".")[0]
    night.cluster.call("qalter", "-wd", "/nowhere", number)
    cancelled = min(night.at_gate())
    night.cluster.cancel(night.at_gate()[cancelled])
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(6)} | {cancelled: 2})
    night.wait_for("the queue is empty", night.idle)


@pytest.mark.fault("a rank that is killed")
def test_a_rank_ends_with_what_started_it(idle: GridEngine, tmp_path: Path) -> None:
    """The launcher's process on a host may be killed alone: its ranks do not work on."""
    _, ranks = waiting_ranks(idle, tmp_path, "-pe", "mpi", "3")
    (proxy,) = processes.parents(ranks)
    processes.kill([proxy])
    processes.until(lambda: not processes.living(ranks))
