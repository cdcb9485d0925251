"""The main job under the profile of a real scheduler: what it asks, what it says of failures."""

import re
import subprocess
import sys

import pytest

from tests import processes
from tests.workspace import Workspace

pytestmark = pytest.mark.timeout(600)


@pytest.mark.fault("a limit of run time")
@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_a_bad_night_is_told_shard_by_shard(night):
    """The last words say why each shard failed, in all ways of this scheduler; a rerun heals."""
    shards = night.cluster.shards_of_a_bad_night
    night.gated(shards)
    night.spoil(0)
    run = night.start("--until", "multiply", "--retries", "0")
    night.wait_for("all are submitted", lambda: len(night.jobs()) == shards)
    room = min(shards - 1, night.cluster.room)
    night.wait_for("as many work as can", lambda: len(night.at_gate()) == room)
    bad = {"00000": "matrix 0 holds NaN or Inf"}
    jobs = [job for job in night.jobs() if job.what != "multiply 00000"]
    spoilt = night.cluster.spoil(jobs).items()
    bad |= {job.what.removeprefix("multiply "): words for job, words in spoilt}
    night.open()
    assert run.wait(timeout=300) == 1
    night.wait_for("no job stays in the queue", night.idle)
    whole = {f"{i:05}" for i in range(shards)} - set(bad)
    assert set(night.receipts()) == whole
    words = night.output().partition(f"not finished: {len(whole)} of {shards} shards")[2]
    told = re.findall(r"  failed: ((?:(?:, )?multiply \d+)+): (.*)\n", words)
    reasons = {shard: why for names, why in told for shard in re.findall(r"\d+", names)}
    assert set(reasons) == set(bad), words
    assert [shard for shard, why in bad.items() if why not in reasons[shard]] == []
    assert re.search(r"log: results/default/logs/multiply/00000-[0-9a-f]{12}\.log", words)
    assert f"cd '{night.root}' && " in words
    night.heal()
    night.finish()


def test_a_dry_run_leaves_the_scheduler_alone(night, tmp_path):
    """It is right even if all clients fail."""
    cluster = night.cluster
    text = "#!/bin/sh\necho {} >>'{}/asked'; exit 1\n"
    scripts = {client: text.format(client, tmp_path) for client in cluster.clients}
    env = cluster.env()
    env["PATH"] = processes.commands(tmp_path, env["PATH"], **scripts)
    night.configure(3)
    for dispatch in ("jobs", "array"):
        night.workspace.configure(**night.own | {"dispatch": dispatch})
        plan = Workspace(night.root, env).run("--dry-run", profile=cluster.profile)
        assert (plan.code, "rule multiply:" in plan.output) == (0, True), plan.output
    asked = tmp_path / "asked"
    assert set(asked.read_text().split() if asked.exists() else ()) <= cluster.no_scheduler


SLOW = """
import time

def square(xp, block):
    time.sleep(4)
    return block @ block
"""


@pytest.mark.nightly  # limits are whole minutes
@pytest.mark.timeout(900)
@pytest.mark.fault("a limit of run time")
def test_a_task_leaves_before_its_time_is_up(night):
    """With a minute per task and 4 s per shard, no shard is cut off or started twice."""
    (night.root / "slow.py").write_text(SLOW)
    night.configure(24, dispatch="array", product="slow.py:square", array_tasks=2)
    done = night.run("--until", "multiply", "--set-resources", "multiply:runtime=1")
    assert done.code == 0, done.output
    assert (len(night.starts()), set(night.starts().values())) == (24, {1})
    logs = night.workspace.file("logs/array").glob("*/*.log")
    assert any("the run time is nearly up" in log.read_text() for log in logs)
    assert not list(night.workspace.file("failed").glob("*")), "nobody is blamed"
    assert len({job.number for job in night.jobs()}) >= 2


def submit(night) -> str:
    """Submit a run; return the job number of its controller."""
    profile = night.cluster.profile
    asks = "--job=" + {"slurm": "--partition=cpu --ntasks=1 --mem=500", "uge": ""}[profile]
    words = ["submit", "--profile", profile, asks, "--configfile", "mine.yaml"]
    line = [sys.executable, "-m", "shardwise.command", *words, *night.cluster.quick]
    done = subprocess.run(
        [*night.workspace.before, *line], cwd=night.root, capture_output=True, text=True,
        env=night.workspace.env | {"PYTHONPATH": str(night.root / "scripts")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = (part for part in done.stdout.splitlines() if part.startswith("job "))
    return said.split()[1]


@pytest.mark.nightly
def test_the_controller_is_a_job(night):
    """If cancelled, it cancels its jobs; the same command again computes what is missing."""
    night.gated(2)
    job = submit(night)
    night.wait_for("both run", lambda: len(night.at_gate()) == 2)
    night.cluster.cancel(job)
    night.wait_for("all are gone", night.idle)
    assert not night.receipts()

    night.open()
    submit(night)
    night.wait_for("there is a sum", night.workspace.file("summary.json").exists)
    night.wait_for("it has ended", night.idle)
    night.check_sum()


@pytest.mark.parametrize("site", ["grid_engine"], indirect=True)
def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(night):
    """The run ends with 2, not only once the shards are done, and names the profile's block."""
    path = night.root / "profiles" / "uge" / "config.yaml"
    path.write_text(path.read_text().replace('"-pe mpi {ranks}"', '"-pe nope {ranks}"'))
    night.configure(2)
    done = night.run()
    assert done.code == 2, done.output
    assert 'environment "nope" does not exist; change the block reduce' in done.output
    assert not night.jobs()
