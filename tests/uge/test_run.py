"""The main job under profiles/uge, on a real Grid Engine with fake GPUs: good runs, bad nights."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import fake_devices
from tests.night import Night, sum_of_squares
from tests.situations import (
    test_a_killed_snakemake_never_costs_a_shard_twice,
    test_bad_input_in_a_shard_is_tried_once,
    test_bad_input_submits_nothing,
    test_ctrl_c_leaves_no_job,
    test_many_faults_at_once,
    test_the_shipped_job_runs_as_it_is,
)
from tests.uge.cluster import UgeCluster
from tests.uge.jobs import Job, Record
from tests.workspace import Workspace

__all__ = [  # what is the same under every scheduler
    "test_a_killed_snakemake_never_costs_a_shard_twice",
    "test_bad_input_in_a_shard_is_tried_once",
    "test_bad_input_submits_nothing",
    "test_ctrl_c_leaves_no_job",
    "test_many_faults_at_once",
    "test_the_shipped_job_runs_as_it_is",
]

pytestmark = [pytest.mark.uge, pytest.mark.timeout(600)]

CLIENTS = ("qsub", "qstat", "qdel", "qacct", "qconf", "qhost", "qmod", "qrsh")
JOB_NAME = re.compile(r"sw-[^-]+-([a-z]+)(?:-(\d{5}))?(?:-\d+)?")


class UgeNight(Night):
    """A workspace on Grid Engine, and the jobs that were submitted since it began."""

    profile = "uge"
    quick = ("--seconds-between-status-checks", "1")
    clients = CLIENTS
    submits, looks = "qsub", "qstat"
    silence = "error: commlib error: got select error (Connection refused)"
    full = "25 job rejected: only 4 jobs are allowed per user"

    def __init__(self, uge: UgeCluster, root: Path, **variables: str) -> None:
        super().__init__(Workspace.create(root, uge.env() | variables, uge.enter(root)))
        self.uge = uge
        known = [*uge.jobs(), *uge.all_records()]
        self._first = max((job.job_id for job in known), default=0) + 1

    def jobs(self) -> list[Job]:
        """The jobs of this workspace that wait or run."""
        return [job for job in self.uge.jobs() if job.job_id >= self._first]

    def records(self) -> list[Record]:
        """The jobs of this workspace that have ended; not those that were deleted unstarted."""
        return [record for record in self.uge.all_records() if record.job_id >= self._first]

    def ended(self) -> dict[str, Record]:
        """The records of a run's jobs, once all have left the queue: marks are there before."""
        self.wait_for("the queue is empty", self.idle)
        return {name(record): record for record in self.records()}

    def starts(self) -> Counter[str]:
        """How often each job was submitted, as ``rule`` or ``rule shard``."""
        names = {job.job_id: name(job) for job in [*self.jobs(), *self.records()]}
        return Counter(names.values())

    def running(self, job: str) -> list[int]:
        """The numbers of the running jobs of a rule, or of ``rule shard``."""
        return self._in_state("r", job)

    def waiting(self, job: str) -> list[int]:
        """The numbers of the waiting jobs of a rule, or of ``rule shard``."""
        return self._in_state("qw", job)

    def _in_state(self, state: str, job: str) -> list[int]:
        found = [j for j in self.jobs() if j.state == state]
        return sorted(j.job_id for j in found if f"{name(j)} ".startswith(f"{job} "))

    def idle(self) -> bool:
        """Whether no job of this workspace waits or runs."""
        return not self.jobs()

    def shard_of(self, job_id: int) -> str:
        """The shard of a job in the queue."""
        (found,) = (name(job) for job in self.jobs() if job.job_id == job_id)
        return found.removeprefix("multiply ")

    def ranks(self) -> int:
        """How many ranks the reduce had."""
        return json.loads(self.workspace.file("summary.json").read_text())["ranks"]

    def change_profile(self, rule: str, old: str, new: str) -> None:
        """Change what a rule asks for, in the workspace's own profile."""
        path = self.workspace.root / "profiles" / "uge" / "config.yaml"
        before, block, after = path.read_text().partition(f"\n  {rule}:")
        assert block, f"the profile has no block of {rule}"
        assert old in after, f"the profile has no {old} in the block of {rule}"
        path.write_text(before + block + after.replace(old, new, 1))


def name(job: Job | Record) -> str:
    """What a job does, as ``rule`` or ``rule shard``."""
    match = JOB_NAME.fullmatch(job.name)
    assert match, f"not a job of ours: {job}"
    return " ".join(filter(None, match.groups()))


# Shards wait until four of them have met, but not as it is tried, before there is a plan.
MEETING_PRODUCT = """
import os
import time
from pathlib import Path

def square(xp, block):
    if Path("results/default/plan.tsv").exists():
        Path(f"met.{os.getpid()}").touch()
        while len(list(Path().glob("met.*"))) < 4:
            time.sleep(0.1)
    return block @ block
"""


@pytest.fixture
def night(uge: UgeCluster, tmp_path: Path) -> Iterator[UgeNight]:
    """A fresh workspace on an idle cluster."""
    night = UgeNight(uge, tmp_path / "with a space")
    yield night
    night.stop()
    uge.cancel_all()


@pytest.fixture
def night_of_hosts(uge_hosts: UgeCluster, tmp_path: Path) -> Iterator[UgeNight]:
    """A fresh workspace on an idle cluster of two hosts, where a silent host is soon lost."""
    night = UgeNight(uge_hosts, tmp_path / "with a space", SHARDWISE_UNHEARD_SECONDS="10")
    yield night
    night.stop()
    uge_hosts.cancel_all()


def test_every_shard_has_a_device_of_its_own(night: UgeNight, tmp_path: Path) -> None:
    """6 shards on 4 devices and the MPI reduce: one start a job, one shard a device at once."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    (night.workspace.root / "meeting.py").write_text(MEETING_PRODUCT)
    night.workspace.configure(
        input="digits.npy",
        product="meeting.py:square",
        shards=6,
        materialize=False,
        reduce={"ranks": 3},
    )
    fake = fake_devices.environment(4, tmp_path / "leases")
    exported = shlex.join(f"{name}={value}" for name, value in fake.items())
    done = night.run("--precommand", f"export {exported}", timeout=500)
    assert done.code == 0, done.output
    assert night.sum().tobytes() == sum_of_squares(digits).tobytes()

    shards = [f"{i:05}" for i in range(6)]
    assert night.starts() == Counter([*(f"multiply {shard}" for shard in shards), "reduce"])
    assert {r["device"]["source"] for r in night.receipts().values()} == {"lease"}
    uses = night.uses("uuid")
    assert sum(uses.values()) == 6
    assert len(uses) == 4, f"all devices should have been used: {uses}"
    journals = night.workspace.file("logs/multiply").glob("*.starts")
    assert [path.read_text().count("\n") for path in journals] == [1] * 6
    assert (night.ended()["reduce"].slots, night.ranks()) == (3, 3)
    assert "multiply: 6 of 6 shards done" in done.output


@pytest.mark.fault("a limit of run time")
@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_a_bad_night_costs_its_own_shards_only(night: UgeNight) -> None:
    """Shards that fail in five ways: the last words tell them apart, one rerun heals."""
    stack = night.folder_of(8)
    np.save(night.matrix(0), np.full((5, 5), np.nan))
    night.workspace.configure(input="stack", shards=8, materialize=False)
    run = night.start(*night.held(), "--retries", "0")
    night.wait_for("all are submitted", lambda: sum(night.starts().values()) == 8)
    night.wait_for("four of them run", lambda: len(night.running("multiply")) == 4)
    (nan,) = (job.job_id for job in night.jobs() if night.shard_of(job.job_id) == "00000")
    deleted, *_ = (job for job in night.running("multiply") if job != nan)
    dropped, homeless, short, *_ = (job for job in night.waiting("multiply") if job != nan)
    shards = {job: night.shard_of(job) for job in (nan, deleted, dropped, homeless, short)}
    night.uge.call("qdel", str(deleted), str(dropped))
    night.uge.call("qalter", "-wd", "/nowhere", str(homeless))
    night.uge.call("qalter", "-l", "gpu=1,h_rt=0:0:3", str(short))
    night.release(nan)  # it may be the next in the queue, and would keep the one free device
    night.wait_for("it is out of time", lambda: short not in {job.job_id for job in night.jobs()})
    night.release()
    assert run.wait(timeout=300) == 1
    night.wait_for("no job stays in the queue", night.idle)
    whole = {f"{i:05}" for i in range(8)} - set(shards.values())
    assert set(night.receipts()) == whole
    assert not night.workspace.file("sum.npy").exists()
    output = night.output()
    words = output[output.index("shardwise: not finished: 3 of 8 shards") :]
    reasons = dict(re.findall(r"  failed: multiply (\d+): (.*)\n", words))
    assert set(reasons) == set(shards.values())
    assert "matrix 0 holds NaN or Inf" in reasons["00000"]
    assert "deleted" in reasons[shards[dropped]]
    assert "deleted" in reasons[shards[deleted]]
    assert "signal 9" in reasons[shards[deleted]]
    assert "/nowhere" in reasons[shards[homeless]]
    assert "limit of run time" in reasons[shards[short]]
    assert f"cd '{night.workspace.root}' && " in words

    np.save(night.matrix(0), stack[0])
    before = night.starts()
    done = night.run()
    assert done.code == 0, done.output
    again = {f"multiply {shard}": 1 for shard in shards.values()}
    assert night.starts() - before == Counter(again | {"reduce": 1})
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@pytest.mark.fault("a scheduler that answers nothing")
@pytest.mark.fault("a submission that fails k times")
def test_a_master_that_is_away_costs_nothing(night: UgeNight) -> None:
    """Shards that end, run on, and are submitted while no command is answered: none fails.

    A restarted master has not heard of any host for half a minute: that is no lost host.
    """
    stack = night.folder_of(5)
    night.workspace.configure(input="stack", shards=5, materialize=False)
    run = night.start(*night.held(), "--jobs", "3", "--retries", "0")
    night.wait_for("three shards run", lambda: len(night.running("multiply")) == 3)
    first, second, _ = night.running("multiply")
    night.uge.kill_master()
    try:
        night.release(first, second)
        night.wait_for("two have ended", lambda: len(night.receipts()) == 2)
        night.wait_for("another is submitted", lambda: night.output().count("rule multiply:") > 3)
        night.wait_for("it is said", lambda: "shardwise: Grid Engine does not" in night.output())
    finally:
        night.uge.start_master()
    night.wait_for("its host is heard of", lambda: set(night.uge.queues().values()) == {""})
    night.release()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter([*(f"multiply {i:05}" for i in range(5)), "reduce"])
    assert np.array_equal(night.sum(), sum_of_squares(stack))


@pytest.mark.fault("a node that goes down")
def test_a_lost_host_costs_no_result(night_of_hosts: UgeNight) -> None:
    """Jobs of a host that crashes run again elsewhere; what was finished stays."""
    night, uge = night_of_hosts, night_of_hosts.uge
    stack = night.folder_of(7)
    night.workspace.configure(input="stack", shards=7, materialize=False)
    run = night.start(*night.held(8))

    def on_n2() -> set[str]:
        return {name(job) for job in night.jobs() if "n2" in job.queue}

    night.wait_for(
        "n2 has finished shards and works on others",
        lambda: on_n2() and "n2" in {record.host for record in night.records()},
    )
    uge.kill_host("n2")
    night.release()
    ended = {name(record) for record in night.records()}
    before = night.receipts()
    # One that had just finished is in the queue, too: its host cannot say so any more.
    lost = {job for job in on_n2() if job.removeprefix("multiply ") not in before}
    try:
        assert run.wait(timeout=300) == 0, night.output()
    finally:
        uge.restore_host("n2")
    night.wait_for("the lost jobs have left the queue", night.idle)
    starts, after = night.starts(), night.receipts()
    assert set(starts) == {*(f"multiply {i:05}" for i in range(7)), "reduce"}
    again = {job for job, count in starts.items() if count == 2}
    # One more may have been sent there before the crash was noticed.
    assert again >= lost
    assert not again & ended
    assert max(starts.values()) == 2
    assert {after[job.removeprefix("multiply ")]["node"] for job in again} == {"n1"}
    kept = [job.removeprefix("multiply ") for job in ended]
    assert [after[shard] for shard in kept] == [before[shard] for shard in kept]
    assert np.array_equal(night.sum(), sum_of_squares(stack))


def test_the_digits_on_a_site_that_counts_devices_by_slot(night: UgeNight) -> None:
    """A parallel environment for each shard, a consumable a slot: one line of the profile."""
    digits = load_digits().images
    np.save(night.workspace.root / "examples" / "digits" / "input.npy", digits)
    night.change_profile("multiply", '"-l gpu=1"', '"-pe smp 2 -l gpuslot=1,gputype=a100"')
    few = ("materialize=False", "shards=3")
    done = night.run("--configfile", "examples/digits/config.yaml", "--config", *few)
    assert done.code == 0, done.output
    slots = {job: record.slots for job, record in night.ended().items()}
    assert slots == {f"multiply {i:05}": 2 for i in range(3)} | {"reduce": 2}
    assert (
        np.load(night.workspace.root / "results/digits/sum.npy").tobytes()
        == sum_of_squares(digits).tobytes()
    )


def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(
    night: UgeNight,
) -> None:
    """Not when the shards are done: the run ends with 2, and names the line of the profile."""
    night.change_profile("reduce", '"-pe mpi {ranks}"', '"-pe nope {ranks}"')
    night.folder_of(2)
    night.workspace.configure(input="stack", shards=2)
    done = night.run()
    assert done.code == 2, done.output
    line = 'environment "nope" does not exist (from uge_parallel: "-pe nope {ranks}")'
    assert line in done.output
    assert not night.starts()


def test_a_dry_run_needs_no_grid_engine(night: UgeNight, tmp_path: Path) -> None:
    """With a scheduler that only fails, a dry run is as right, and asks it nothing at all."""
    assert night.asked_by_a_dry_run(CLIENTS, tmp_path / "bin") == set()
