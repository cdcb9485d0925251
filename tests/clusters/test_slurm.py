"""What only Slurm has, on a real one: controllers, requeues, srun, and the test cluster itself."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from shardwise.plan.plan import Plan

from tests import factories, processes
from tests.clusters.jobs import SpreadJobs
from tests.clusters.night import MULTIPLY, ArrayNight, Night, sum_of_squares
from tests.clusters.slurm.cluster import Slurm
from tests.factories import nightly

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("site", ["slurm"], indirect=True),
]

LEFT = factories.stack((7, 4, 4))


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


def test_what_slurm_refuses_is_told_in_its_words(night: Night) -> None:
    """Before the first job where Slurm can tell; else of the job that is refused, once."""
    stack = night.folder_of(2)
    night.workspace.configure(input="stack", shards=2, materialize=False)
    done = night.run("--default-resources", "slurm_partition=nowhere")
    assert done.code == 2, done.output
    assert "would not take the jobs of rule multiply: " in done.output
    assert "invalid partition" in done.output.lower()
    assert not night.jobs()

    words = "Batch job submission failed: Invalid account or account/partition combination"
    (night.shim() / "sbatch.next").write_text(f"1 sbatch: error: {words}\n")
    done = night.run()
    assert done.code == 1
    assert f"Slurm did not accept the job: {words}; change the block multiply" in done.output
    assert words in night.workspace.file("report.html").read_text()
    assert sum(night.starts().values()) == 1, "it is not tried again"
    assert night.run().code == 0
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@pytest.mark.fault("a job that is requeued")
def test_a_requeued_task_commits_once(array_night: ArrayNight) -> None:
    """Slurm's staff requeues a task in its work: its shard is computed again, and no other."""
    night = array_night
    night.gated(2)
    run = night.start(*MULTIPLY)
    night.wait_for("both run", lambda: len(night.at_gate()) == 2)
    task, process = night.at_gate()["00001"], night.process("00001")
    night.cluster.call("scontrol", "update", f"JobId={task}", "Requeue=1")
    night.cluster.call("scontrol", "requeue", task)
    night.wait_for("it is ended", lambda: not processes.living([process]))
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 1, "00001": 2})
    assert not list(night.workspace.file("failed").glob("*")), "nobody is blamed"


@pytest.mark.nightly  # Slurm counts in minutes
@pytest.mark.timeout(600)
@pytest.mark.fault("a limit of run time")
def test_a_task_out_of_time_is_tried_again(array_night: ArrayNight) -> None:
    """Slurm ends it, the reason is told, and the next try has its time."""
    night = array_night
    night.gated(2)
    run = night.start(*MULTIPLY, "--set-resources", "multiply:runtime=1")
    failed = night.workspace.file("failed")
    night.wait_for("they are ended", lambda: len(list(failed.glob("*"))) == 2, 300)
    told = "the run time of its job was too short for it"
    assert all(told in path.read_text() for path in failed.glob("*"))
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 2, "00001": 2})


def test_a_task_that_can_never_run_leaves_its_work_to_others(array_night: ArrayNight) -> None:
    """Slurm's staff holds one of the waiting tasks: it is cancelled, all shards are whole."""
    night = array_night
    night.gated(9)
    run = night.start(*MULTIPLY)
    night.wait_for("some wait", lambda: night.at_gate() and len(night.waiting()) >= 3)
    night.cluster.call("scontrol", "hold", max(night.waiting()))
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(9)})


@pytest.mark.nightly
@pytest.mark.parametrize("dispatch", ["pool", "mpi"])
@pytest.mark.fault("a job that is requeued")
def test_a_requeued_job_goes_on(idle: Slurm, dispatch: str, tmp_path: Path) -> None:
    """Started again by Slurm, it computes what is missing; each shard commits once."""
    jobs = SpreadJobs(idle, dispatch, tmp_path)
    job = jobs.submit(*idle.one_job[dispatch], "--requeue")
    processes.until(lambda: len(jobs.spread.receipts()) >= 3)
    jobs.spread.put("hold")
    before = jobs.spread.receipts()
    idle.call("scontrol", "requeue", str(job))
    processes.until(lambda: not jobs.spread.living())
    jobs.spread.take_away("hold")
    idle.call("scontrol", "release", str(job), check=False)
    jobs.succeeds(job)
    after = jobs.spread.receipts()
    assert {shard: after[shard] for shard in before} == before
    assert idle.show_job(job)["Restarts"] == "1"


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    """A plan of seven matrices in three shards, computed."""
    return factories.listed(factories.plan(tmp_path, LEFT, shards=3))


def reduce_line(made: Plan, *words: str) -> str:
    """The command line of the reduce."""
    return shlex.join(factories.command("reduce", "--plan", made.results.plan, *words))


def test_mpiexec_works_in_any_shell_of_a_job(idle: Slurm, made: Plan) -> None:
    """Under an srun that holds the only CPU and all memory, with more ranks than CPUs."""
    line = f"srun -n1 sh -c {shlex.quote(reduce_line(made, '--ranks', '3'))}"
    job = idle.submit(line, "-p", "cpu", "-n1")
    (done,) = idle.wait_for(job)
    assert done.state == "COMPLETED", idle.printed(job)
    assert json.loads(made.results.summary.read_text())["nodes"] == {"cpu1": 3}


@pytest.mark.parametrize("by_srun", [True, nightly(False)])
def test_a_launcher_of_another_mpi_is_refused(idle: Slurm, made: Plan, by_srun: bool) -> None:
    """Worlds of one rank each sum nothing, and start no ranks of their own."""
    line = "srun --mpi=none"
    words = f"{line} {reduce_line(made)}" if by_srun else reduce_line(made, "--launcher", line)
    job = idle.submit(words, "-p", "cpu", "-N1", "-n2")
    idle.wait_for(job)
    # A rank that is slower is ended for the other's sake before it says the same, with 143.
    assert idle.show_job(job)["ExitCode"] in ("2:0", "143:0"), idle.printed(job)
    assert "asked for 2 ranks, but MPI has 1" in idle.printed(job)
    assert not made.results.summary.exists()


@pytest.mark.parametrize("mpi", ["srun --mpi=pmi2", nightly("mpiexec")])
def test_the_profile_spreads_the_ranks(night: Night, mpi: str) -> None:
    """Every kind of job is submitted; with either launcher the ranks lie evenly on the nodes.

    The profile is quiet: each stage says one line.
    """
    night.workspace.configure(shards=1, reduce={"ranks": 4})
    profile = night.workspace.root / "profiles" / "slurm" / "config.yaml"
    others, reduce, block = profile.read_text().partition("\n  reduce:")
    spread = re.sub(r"# (nodes: 2|slurm_extra: )", r"\1", block)
    text = spread.replace('mpi: "srun --mpi=pmi2"', f'mpi: "{mpi}"\n    slurm_partition: gpu')
    profile.write_text(others + reduce + text)
    done = night.run("--quiet", "rules")
    assert done.code == 0, done.output
    assert len(done.output.splitlines()) <= 20, done.output
    assert night.starts() == Counter(["synthesize", "shard 00000", "multiply 00000", "reduce"])
    summary = json.loads(night.workspace.file("summary.json").read_text())
    assert summary["nodes"] == {"gpu1": 2, "gpu2": 2}
    assert f"/{mpi} -n 4" in night.workspace.file("logs/reduce/reduce.log").read_text()


@pytest.mark.nightly
def test_the_doctor_inside_a_job_starts_its_ranks_by_srun(idle: Slurm, tmp_path: Path) -> None:
    """With the launcher of the profile: one world, on the node of the job."""
    launcher = ["--launcher", "srun --mpi=pmi2 --overlap --mem=0"]
    words = factories.command("doctor", "--time-limit", 60, "--results", tmp_path, *launcher)
    job = idle.submit(shlex.join(words), "-p", "gpu", "-n2", "--gres=gpu:a100:1")
    idle.wait_for(job)
    printed = idle.printed(job)
    assert "srun --mpi=pmi2 --overlap" in printed
    assert "2 ranks in one world on " in printed
