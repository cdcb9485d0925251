"""What only Grid Engine has, on a real one: its master, its accounting, and the test cluster."""

import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shardwise.records import ledger
from sklearn.datasets import load_digits

from tests import factories, processes
from tests.clusters.cluster import Cluster, ClusterError
from tests.clusters.grid_engine import config
from tests.clusters.grid_engine.cluster import GridEngine, what
from tests.clusters.jobs import waiting_ranks
from tests.clusters.night import MULTIPLY, ArrayNight, Night, sum_of_squares

pytestmark = [
    pytest.mark.grid_engine,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["grid_engine"], indirect=True),
]


@pytest.fixture
def uge(site: GridEngine) -> Iterator[GridEngine]:
    """A running cluster of one host; no job is left there."""
    yield site
    site.cancel_all()


@pytest.fixture
def array_of_hosts(nodes: Cluster, tmp_path: Path) -> Iterator[ArrayNight]:
    """A fresh workspace on an idle cluster of two hosts, where a silent host is soon lost."""
    night = ArrayNight(nodes, tmp_path / "with a space")
    yield night
    night.stop()


@pytest.mark.fault("a scheduler that answers nothing")
@pytest.mark.fault("a submission that fails k times")
def test_a_master_that_is_away_costs_nothing(night: Night) -> None:
    """Shards that end, run on, and are submitted while no command is answered: none fails.

    A restarted master has not heard of any host for half a minute: that is no lost host.
    """
    stack = night.folder_of(5)
    night.workspace.configure(input="stack", shards=5, materialize=False)
    run = night.start(*night.held(), "--jobs", "3", "--retries", "0")
    night.wait_for("three shards run", lambda: len(night.running("multiply")) == 3)
    first, second, _ = night.running("multiply")
    night.cluster.kill_controller()
    try:
        night.release(first, second)
        night.wait_for("two have ended", lambda: len(night.receipts()) == 2)
        night.wait_for("another is submitted", lambda: night.output().count("rule multiply:") > 3)
        night.wait_for("it is said", lambda: "shardwise: Grid Engine does not" in night.output())
    finally:
        night.cluster.start_controller()
    night.wait_for("its host is heard of", lambda: set(night.cluster.queues().values()) == {""})
    night.release()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter([*(f"multiply {i:05}" for i in range(5)), "reduce"])
    assert np.array_equal(night.sum(), sum_of_squares(stack))


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
    few = ("materialize=False", "shards=3")
    done = night.run("--configfile", "examples/digits/config.yaml", "--config", *few)
    assert done.code == 0, done.output
    night.wait_for("the queue is empty", night.idle)
    shards = {job.job for job in night.jobs()}
    records = [record for record in night.cluster.all_records() if record.job_id in shards]
    slots = {what(record): record.slots for record in records}
    assert slots == {f"multiply {i:05}": 2 for i in range(3)} | {"reduce": 2}
    assert (
        np.load(night.workspace.root / "results/digits/sum.npy").tobytes()
        == sum_of_squares(digits).tobytes()
    )


def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(
    night: Night,
) -> None:
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
def test_a_lost_host_costs_no_result(array_of_hosts: ArrayNight) -> None:
    """Tasks of a host that crashes run again elsewhere, though qstat lists them as running."""
    night = array_of_hosts
    night.of(4)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("all run", lambda: len(night.tasks("running")) == 4)
    lost = night.tasks("running", "n2")
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


def test_a_task_that_cannot_start_ends_with_the_reason(array_night: ArrayNight) -> None:
    """Its working directory goes away: each try is deleted from the queue, and the reason told."""
    night = array_night
    night.of(6)
    run = night.start(*MULTIPLY, *night.gated(), "--retries", "0")
    night.wait_for("two wait", lambda: len(night.tasks("waiting")) == 2)
    waiting = night.tasks("waiting")
    for task in waiting.values():
        night.cluster.call("qalter", "-wd", "/nowhere", task.partition(".")[0])
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert night.output().count("/nowhere") >= 2
    assert set(night.receipts()).isdisjoint(waiting)
    night.wait_for("the queue is empty", night.idle)


def test_more_ranks_than_slots_share_them(uge: GridEngine, tmp_path: Path) -> None:
    """A number of ranks that the user names is taken as it is."""
    made = factories.computed(factories.plan(tmp_path, factories.noise((9, 8, 8)), shards=3))
    ledger.write(made)
    line = factories.command("reduce", "--plan", made.results.plan, "--ranks", 3)
    job = uge.submit(shlex.join(line), "-pe", "mpi", "2")
    assert uge.finish(job) == 0, uge.printed(job)
    assert json.loads(made.results.summary.read_text())["ranks"] == 3


@pytest.mark.fault("a rank that is killed")
def test_a_rank_ends_with_what_started_it(uge: GridEngine, tmp_path: Path) -> None:
    """The launcher's process on a host may be killed alone: its ranks do not work on."""
    _, ranks = waiting_ranks(uge, tmp_path, "-pe", "mpi", "3")
    (proxy,) = processes.parents(ranks)
    processes.kill([proxy])
    uge.wait_until(lambda: not processes.living(ranks))


def test_the_doctor_names_the_gpus_of_grid_engine(uge: GridEngine, tmp_path: Path) -> None:
    """The complexes, where they are, the parallel environments, and how to look at a node."""
    uge.wait_idle()
    done = factories.run("doctor", "--json", "--time-limit", 60, cwd=tmp_path, env=uge.env())
    said = json.loads(done.stdout)
    assert done.returncode == said["verdict"]["exit_code"]
    own = [finding for finding in said["findings"] if finding["section"] == "grid engine"]
    gpus = {f["facts"]["complex"]["name"]: f for f in own if f["name"] == "gpus"}
    assert gpus["gpu"]["text"].startswith("gpu (INT, counted once a job); free: ")
    assert list(gpus["gpu"]["facts"]["hosts"].values()) == ["4"]
    assert "counted for each slot" in gpus["gpuslot"]["text"]
    found = {finding["name"]: finding for finding in own}
    assert set(found["environments"]["facts"]["names"]) == set(config.PARALLEL)
    assert found["environments"]["level"] == "ok"
    assert found["grid engine"]["facts"]["version"].startswith("SGE ")
    assert found["nodes"]["cure"].startswith("qrsh -cwd -l gpu=1 ")


def test_the_accounting_keeps_exit_codes(uge: GridEngine) -> None:
    """A job that fails by itself ends with its own code, one with a bad folder waits as Eqw."""
    (record,) = uge.wait_for(uge.submit("echo said; exit 3"))
    assert (record.failed, record.exit_status, record.host) == (0, 3, "localhost")
    assert uge.printed(record.job_id) == "said\n"
    uge.wait_state(uge.submit("true", "-wd", "/nowhere"), "Eqw")


def test_a_deleted_job_is_told_from_a_failed_one(uge: GridEngine) -> None:
    """``qdel`` of a running job is failed 100; one that still waits leaves no record."""
    running = uge.submit("sleep 600", "-l", "gpu=4")
    uge.wait_state(running)
    waiting = uge.submit("true", "-l", "gpu=1")
    uge.wait_state(waiting, "qw")
    uge.call("qdel", str(waiting), str(running))
    (record,) = uge.wait_for(running)
    assert (record.failed, record.exit_status) == (100, 137)
    uge.wait_idle()
    assert uge.records(waiting) == []


def test_jobs_start_from_a_clean_environment(
    uge: GridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the tests' environment reaches a job, nor does where Grid Engine's files lie."""
    monkeypatch.setenv("OF_THE_TESTS", "1")
    job = uge.submit("echo ${OF_THE_TESTS-unset} ${LD_LIBRARY_PATH-unset} ${SGE_ND-unset}")
    uge.wait_for(job)
    assert uge.printed(job).split() == ["unset"] * 3


def test_a_second_cluster_clears_a_crashed_one_away(uge: GridEngine) -> None:
    """Two clusters live side by side; one started in a folder ends what was left running there."""
    with (
        tempfile.TemporaryDirectory(prefix="uge-") as folder,
        GridEngine(uge.prefix).start(Path(folder)) as crashed,
    ):
        crashed.wait_state(crashed.submit("env -i setsid sleep 600 & sleep 600"))
        left = crashed.own_processes()
        assert len(left) >= 6, "two daemons, a shepherd, a shell and two that sleep"
        with GridEngine(uge.prefix).start(Path(folder)) as fresh:
            assert not processes.living(left)
            assert fresh.jobs() == []
            assert set(uge.queues().values()) == {""}
        fresh.stop()  # a second time
        with pytest.raises(ClusterError, match="not running"):
            fresh.jobs()
