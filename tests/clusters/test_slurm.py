"""What only Slurm has, on a real one: controllers, requeues, srun, and the test cluster itself."""

import json
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shardwise.files import pieces
from shardwise.observe import metrics
from shardwise.observe.folder import Observer
from shardwise.plan.plan import Plan
from shardwise.records import ledger

from tests import factories, processes
from tests.clusters.jobs import SpreadJobs
from tests.clusters.night import MULTIPLY, ArrayNight, Night, sum_of_squares
from tests.clusters.slurm.cluster import Slurm
from tests.monitoring import prometheus
from tests.monitoring.test_dashboard import QUERIES

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["slurm"], indirect=True),
]

LEFT = factories.stack((7, 4, 4))


@pytest.fixture
def slurm(site: Slurm) -> Iterator[Slurm]:
    """A running cluster; no job is left there."""
    yield site
    site.cancel_all()


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
def test_a_controller_killed_by_9_and_started_again_costs_nothing(night: Night) -> None:
    """Shards end while nobody answers, another is submitted later: none is lost or done twice."""
    stack = night.folder_of(4)
    (night.workspace.root / "mine.py").write_text(WAITING_PRODUCT)
    own = {"input": "stack", "product": "mine.py:square", "shards": 4, "materialize": False}
    night.workspace.configure(**own)
    # A task that Slurm refuses before it begins is submitted once more, see `refused`.
    run = night.start("--jobs", "3", "--retries", "3")
    journals = night.workspace.file("logs/multiply")
    night.wait_for("three shards work", lambda: len([*journals.glob("*.starts")]) == 3)
    time.sleep(8)  # Slurm saves its jobs every five seconds: those that it forgets are lost
    night.cluster.kill_controller()
    try:
        (night.workspace.root / "go").touch()
        night.wait_for("it is said", lambda: "shardwise: Slurm does not answer" in night.output())
    finally:
        night.cluster.start_controller()
    assert run.wait(timeout=280) == 0, night.output()
    assert [len(path.read_text().splitlines()) for path in journals.glob("*.starts")] == [1] * 4
    once = Counter([*(f"multiply {i:05}" for i in range(4)), "reduce"])
    assert night.starts() == once + refused(night)
    assert np.array_equal(night.sum(), sum_of_squares(stack))


def refused(night: Night) -> Counter[str]:
    """How often Slurm itself has refused to begin a task that it had accepted, by ``rule shard``.

    A new controller has no devices of a node before that has told it of them.
    """
    logs = (night.workspace.root / ".snakemake/slurm_logs/rule_multiply").glob("*/*.log")
    said = "Unable to create step for job"
    return Counter(f"multiply {log.parent.name}" for log in logs if said in log.read_text())


@pytest.mark.nightly
@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
def test_an_unknown_job_proves_itself_by_its_files(night: Night) -> None:
    """UNKNOWN counts as success to the plugin: one that works on is not repeated, a dead one is."""
    stack = night.folder_of(2)
    night.workspace.configure(input="stack", shards=2, materialize=False)
    shims = night.shim()
    run = night.start(*night.held(), "--latency-wait", "10")
    night.wait_for("both run", lambda: len(night.running("multiply")) == 2)
    dead, living = (night.running(f"multiply {shard}")[0] for shard in ("00000", "00001"))
    night.cluster.cancel(dead.handle)
    (shims / "squeue.next").write_text("UNKNOWN\n")
    night.wait_for("Slurm has said so", lambda: not (shims / "squeue.next").read_text())
    night.release(living)
    night.wait_for("it has its product", lambda: "00001" in night.receipts())
    night.release()
    assert run.wait(timeout=500) == 0, night.output()
    assert night.starts() == Counter({"multiply 00000": 2, "multiply 00001": 1, "reduce": 1})
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@pytest.mark.fault("a job that is requeued")
def test_a_requeued_task_commits_once(array_night: ArrayNight) -> None:
    """Slurm's staff requeues a task in its work: it starts again, and leaves one result."""
    night = array_night
    night.of(2)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("both run", lambda: len(night.tasks("running")) == 2)
    task = night.tasks("running")["00001"]
    night.cluster.call("scontrol", "update", f"JobId={task}", "Requeue=1")
    night.cluster.call("scontrol", "requeue", task)
    night.wait_for("it waits again", lambda: "00001" not in night.tasks("running"))
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 1, "00001": 1})
    assert night.arrays() == 1


@pytest.mark.nightly  # Slurm counts in minutes
@pytest.mark.timeout(600)
@pytest.mark.fault("a limit of run time")
def test_a_task_out_of_time_is_tried_again(array_night: ArrayNight) -> None:
    """Slurm ends it, the reason is told, and the next try has its time."""
    night = array_night
    night.of(2)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("both run", lambda: len(night.tasks("running")) == 2)
    task = night.tasks("running")["00001"]
    night.cluster.call("scontrol", "update", f"JobId={task}", "TimeLimit=1")
    told = "shard 00001: the scheduler says: TIMEOUT"
    night.wait_for("it is ended", lambda: told in night.log(), 300)
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 1, "00001": 1})


@pytest.mark.nightly  # passes by itself; after other tests on the same cluster it may wait for ever
def test_a_task_that_can_never_run_ends_with_the_reason(array_night: ArrayNight) -> None:
    """Slurm's staff holds a waiting task: it is cancelled and named, the others finish."""
    night = array_night
    night.of(8)
    run = night.start(*MULTIPLY, *night.gated())
    # As many wait as there are too few devices; a node may be away after the test before.
    night.wait_for("some wait", lambda: night.tasks("running") and len(night.tasks("waiting")) >= 2)
    shard, task = sorted(night.tasks("waiting").items())[-1]
    night.cluster.call("scontrol", "hold", task)
    night.wait_for("it is given up", lambda: f"shard {shard}: the scheduler" in night.log())
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert f"{shard}: the scheduler says: PENDING (JobHeldAdmin)" in night.output()
    assert len(night.receipts()) == 7


@pytest.mark.parametrize("dispatch", ["pool", "mpi"])
@pytest.mark.fault("a job that is requeued")
def test_a_requeued_job_goes_on(slurm: Slurm, dispatch: str, tmp_path: Path) -> None:
    """Started again by Slurm, it computes what is missing; each shard commits once."""
    jobs = SpreadJobs(slurm, dispatch, tmp_path)
    job = jobs.submit(*slurm.one_job[dispatch], "--requeue")
    processes.until(lambda: len(jobs.spread.receipts()) >= 3)
    jobs.spread.put("hold")
    before = jobs.spread.receipts()
    slurm.call("scontrol", "requeue", str(job))
    processes.until(lambda: not jobs.spread.living())
    jobs.spread.take_away("hold")
    slurm.call("scontrol", "release", str(job), check=False)
    jobs.succeeds(job)
    after = jobs.spread.receipts()
    assert {shard: after[shard] for shard in before} == before
    assert slurm.show_job(job)["Restarts"] == "1"


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    """A plan of seven matrices in three shards, computed."""
    made = factories.computed(factories.plan(tmp_path, LEFT, shards=3))
    ledger.write(made)
    return made


def reduce_line(made: Plan, *words: str) -> str:
    """The command line of the reduce."""
    return shlex.join(factories.command("reduce", "--plan", made.results.plan, *words))


def test_auto_works_in_any_shell_of_a_job(slurm: Slurm, made: Plan) -> None:
    """Under an srun that holds the only CPU and all memory, with more ranks than CPUs."""
    line = f"srun -n1 sh -c {shlex.quote(reduce_line(made, '--ranks', '3'))}"
    job = slurm.submit(line, "-p", "cpu", "-n1")
    (done,) = slurm.wait_for(job)
    assert done.state == "COMPLETED", slurm.printed(job)
    assert json.loads(made.results.summary.read_text())["nodes"] == {"cpu1": 3}


@pytest.mark.parametrize("by_srun", [True, False])
def test_a_launcher_of_another_mpi_is_refused(slurm: Slurm, made: Plan, by_srun: bool) -> None:
    """Worlds of one rank each sum nothing, and start no ranks of their own."""
    line = "srun --mpi=none"
    words = f"{line} {reduce_line(made)}" if by_srun else reduce_line(made, "--launcher", line)
    job = slurm.submit(words, "-p", "cpu", "-N1", "-n2")
    slurm.wait_for(job)
    assert slurm.show_job(job)["ExitCode"] == "2:0", slurm.printed(job)
    assert "asked for 2 ranks, but MPI has 1" in slurm.printed(job)
    assert not made.results.summary.exists()


@pytest.mark.fault("a reduce killed half-way")
def test_a_reduce_that_is_killed_half_way_is_continued(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank on the second node is killed; the next job goes on from what all have saved."""
    monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", 256)
    left = factories.stack((40, 12, 12))
    made = factories.computed(factories.plan(tmp_path, left, shards=7, materialize=False))
    ledger.write(made)
    program = [sys.executable, "-m", "mpi4py", "-m", "tests.killed_program"]
    launcher = ["srun", "--mpi=pmi2", "--kill-on-bad-exit"]
    path = f"PYTHONPATH={shlex.quote(f'{factories.SCRIPTS}:{factories.ROOT}')}"
    for victim, state in ((2, "FAILED"), (-1, "COMPLETED")):
        words = [made.results.plan, 256, 300, victim, 7, "sum"]
        line = shlex.join([*launcher, *program, *map(str, words)])
        job = slurm.submit(f"{path} {line}", "-p", "gpu", "-N2", "-n3")
        (done,) = slurm.wait_for(job, timeout_s=180)
        assert done.state == state, slurm.printed(job)
        assert bool(list(made.results.partial.glob("*.part"))) == (victim >= 0)
        assert made.results.statistic("sum").exists() == (victim < 0)
    assert np.array_equal(np.load(made.results.statistic("sum")), (left @ left).sum(axis=0))


def test_the_profile_spreads_the_ranks(night: Night) -> None:
    """Ranks lie evenly on the nodes that it asks for, with either launcher, in a Snakemake job."""
    workspace = night.workspace
    np.save(workspace.root / "stack.npy", LEFT)
    own = {"input": "stack.npy", "shards": 1, "materialize": False, "backend": "numpy"}
    workspace.configure(**own, reduce={"ranks": 4})
    profile = workspace.root / "profiles" / "slurm" / "config.yaml"
    shipped = profile.read_text()
    spread = re.sub(r"# (nodes: 2|slurm_extra: )", r"\1", shipped)
    for mpi in ("srun --mpi=pmi2", "mpiexec"):
        text = spread.replace('mpi: "srun --mpi=pmi2"', f'mpi: "{mpi}"\n    slurm_partition: gpu')
        profile.write_text(text)
        done = night.run()
        assert done.code == 0, done.output
        summary = json.loads(workspace.file("summary.json").read_text())
        assert summary["nodes"] == {"gpu1": 2, "gpu2": 2}
        assert f"/{mpi} -n 4" in workspace.file("logs/reduce/reduce.log").read_text()
        workspace.file("summary.json").unlink()


def test_the_doctor_names_the_gpus_of_slurm(slurm: Slurm, tmp_path: Path) -> None:
    """By kind and node, with the MPI types, and how to look at a node."""
    slurm.wait_idle()
    done = factories.run("doctor", "--json", "--time-limit", 60, cwd=tmp_path, env=slurm.env())
    said = json.loads(done.stdout)
    assert done.returncode == said["verdict"]["exit_code"]
    found = {f["name"]: f for f in said["findings"] if f["section"] == "slurm"}
    assert {f["level"] for name, f in found.items() if name != "nodes"} == {"ok"}
    nodes = {(row["name"], row["gres"]) for row in found["gpus"]["facts"]["nodes"]}
    assert nodes == {("gpu1", "gpu:a100:4"), ("gpu2", "gpu:h200:2")}
    assert "gpu:a100:4 on 1 node (1 idle)" in found["gpus"]["text"]
    assert "pmi2" in found["mpi types"]["facts"]["types"]
    assert found["nodes"]["cure"].startswith("srun --gres=gpu:1 ")


def test_the_doctor_inside_a_job_starts_its_ranks_by_srun(slurm: Slurm, tmp_path: Path) -> None:
    """As the reduce would there: one world, on the node of the job."""
    words = factories.command("doctor", "--time-limit", 60, "--results", tmp_path)
    job = slurm.submit(shlex.join(words), "-p", "gpu", "-n2", "--gres=gpu:a100:1")
    slurm.wait_for(job, timeout_s=180)
    printed = slurm.printed(job)
    assert "srun --mpi=pmi2 --overlap" in printed
    assert "2 ranks in one world on " in printed


def test_job_of_a_crashed_node_ends_as_node_fail(slurm: Slurm) -> None:
    """A crash goes unreported until the node is declared down, and the node can come back."""
    lost = slurm.submit("sleep 600", "--gres=gpu:h200:1", "--no-requeue")
    moved = slurm.submit("sleep 600", "--gres=gpu:h200:1", "--requeue")
    for job in (lost, moved):
        slurm.wait_for(job, {"RUNNING"})
    slurm.kill_node("gpu2")
    assert {job.state for job in slurm.jobs() if not job.finished} == {"RUNNING"}
    slurm.set_down("gpu2")
    assert slurm.wait_for(lost)[0].state == "NODE_FAIL"
    slurm.wait_for(moved, {"PENDING"})
    assert slurm.show_job(moved)["Restarts"] == "1"
    slurm.restore_node("gpu2")
    (after,) = slurm.wait_for(slurm.submit("true", "--gres=gpu:h200:1"))
    assert (after.state, after.nodes) == ("COMPLETED", "gpu2")


def test_srun_needs_no_slurm_variable(slurm: Slurm) -> None:
    """A step starts from an environment without ``SLURM_CONF``, as in a Snakemake job."""
    step = "unset SLURM_CONF; srun --jobid=$SLURM_JOB_ID printenv SLURMD_NODENAME"
    job = slurm.submit(step, "--partition=cpu")
    slurm.wait_for(job)
    assert slurm.printed(job).strip() == "cpu1"


def test_jobs_inherit_no_library_path(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unpacked libraries serve Slurm only: jobs load what they would load elsewhere."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    job = slurm.submit("echo ${LD_LIBRARY_PATH-unset}; srun sh -c 'echo ${LD_LIBRARY_PATH-unset}'")
    slurm.wait_for(job)
    assert slurm.printed(job).split() == ["unset", "unset"]


def test_second_cluster_clears_a_crashed_one_away(slurm: Slurm) -> None:
    """Two clusters live side by side; one started in a folder ends what was left running there."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        crashed = Slurm(slurm.prefix).start(Path(folder))
        crashed.wait_for(crashed.submit("setsid sleep 600"), {"RUNNING"})
        left = processes.holders(crashed.layout.log("slurmctld"))
        with Slurm(slurm.prefix).start(Path(folder)) as fresh:
            assert not left & processes.holders(fresh.layout.log("slurmctld"))
            assert fresh.jobs() == []
            assert set(slurm.nodes().values()) == {"IDLE"}
            log = fresh.layout.log("slurmctld")
        fresh.stop()  # a second time
        assert processes.holders(log) == set()
        crashed.stop()


@pytest.mark.nightly
def test_prometheus_follows_a_run_to_its_proof(night: Night, tmp_path: Path) -> None:
    """Shards wait, are done and proven, one after the other, and every query is answered."""
    night.folder_of(6)
    night.workspace.configure(input="stack", shards=6, materialize=False)
    root = night.workspace.file(".")
    data = tmp_path / "prometheus"
    data.mkdir()
    with (
        metrics.serve(Observer(root), every=0.5) as port,
        prometheus.scraping(data, port) as server,
    ):
        assert server.query('shardwise_run_verdict{verdict="empty"} == 1')
        run = night.start(*night.held())
        waiting = f'shardwise_shards{{state="waiting"}} == {6}'
        night.wait_for("Prometheus sees shards that wait", lambda: server.query(waiting))
        assert server.query("shardwise_run_proven == 0")
        night.release()
        assert run.wait(timeout=400) == 0, night.output()
        night.wait_for("it sees the proof", lambda: server.query("shardwise_run_proven == 1"))
        assert server.query(f'shardwise_shards{{state="done"}} == {6}')
        # From none to all while it watched: a rate that is no guess.
        assert server.query("delta(shardwise_done_bytes[10m]) > 0")
        folder = re.escape(str(root.absolute())).replace("\\", "\\\\")
        answers = {expr: server.query(expr.replace("$results", folder)) for _, expr in QUERIES}
        states = next(expr for expr in answers if "by (state)" in expr)
        assert len(answers[states]) == len({"done", "running", "failed", "waiting", "damaged"})
        assert server.alerts() == set()
