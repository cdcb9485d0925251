"""All shards by one job, under `pool` on one node and under `mpi` on several."""

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import processes
from tests.clusters.cluster import Cluster
from tests.clusters.conftest import KINDS, on_each_site
from tests.clusters.jobs import SpreadJobs
from tests.clusters.night import Night, sum_of_squares
from tests.spread import BAD, SHARDS

pytestmark = pytest.mark.timeout(600)

DEVICES = {"pool": 1, "mpi": 2}
"""How many GPUs the profiles ask for as they are shipped."""


def enough(*pairs: str, ways: Iterable[str] = DEVICES) -> pytest.MarkDecorator:
    """Some pairs of a scheduler and a dispatch by day, all at night: enough for what is shown."""
    cases = [
        pytest.param(s, d, marks=[getattr(pytest.mark, s)]
                     + [pytest.mark.nightly] * (f"{s} {d}" not in pairs))
        for s in KINDS for d in ways
    ]  # fmt: skip
    return pytest.mark.parametrize(("site", "dispatch"), cases, indirect=True)


@pytest.fixture(params=DEVICES)
def dispatch(request: pytest.FixtureRequest) -> str:
    """How shards are spread."""
    return request.param


@pytest.fixture
def jobs(
    request: pytest.FixtureRequest, site: Cluster, dispatch: str, tmp_path: Path
) -> Iterator[SpreadJobs]:
    """Jobs that have four devices: on one node under `pool`, on two under `mpi`."""
    cluster = request.getfixturevalue("nodes") if dispatch == "mpi" else site
    yield SpreadJobs(cluster, dispatch, tmp_path)
    cluster.cancel_all()


@enough("slurm mpi")
@pytest.mark.fault("a rank that is killed")
def test_a_killed_parent_costs_the_shards_of_its_workers(jobs: SpreadJobs) -> None:
    """They end with it; what was whole stays as it is, and a rerun does the rest."""
    job = jobs.submit()
    processes.until(lambda: len(jobs.spread.receipts()) >= 3)
    jobs.spread.put("hold")
    jobs.all_at_work()
    processes.kill(jobs.spread.leaders()[-1:])
    jobs.spread.take_away("hold")
    assert jobs.cluster.finish(job) != 0
    processes.until(lambda: not jobs.spread.living())
    before = jobs.spread.receipts()
    assert 3 <= len(before) < SHARDS
    jobs.succeeds(jobs.submit())
    after = jobs.spread.receipts()
    assert {shard: after[shard] for shard in before} == before


@enough()
def test_a_shard_that_always_fails_costs_itself(jobs: SpreadJobs) -> None:
    """All others finish; the job ends with its code, and its last words name it."""
    jobs.spread.put("bad")
    job = jobs.submit()
    assert jobs.cluster.finish(job) == 2, jobs.cluster.printed(job)
    jobs.spread.check(without=[BAD])
    named, last = (line for line in jobs.cluster.printed(job).splitlines() if " ERROR " in line)
    assert f"ERROR shard {BAD:05}: " in named
    assert "this one never works" in named
    assert f"of {SHARDS} shards 1 failed" in last


@enough("slurm mpi", "grid_engine mpi")
@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.fault("two runs at once")
def test_a_cancelled_job_leaves_no_process(jobs: SpreadJobs) -> None:
    """A second run beside it ends with 75; once it is cancelled nothing lives; a rerun heals."""
    jobs.spread.put("hold")
    job = jobs.submit()
    jobs.all_at_work()
    line = jobs.spread.line("--dispatch", "pool")
    second = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert second.returncode == 75, second.stderr
    assert "its shards are being computed by process" in second.stderr
    jobs.cluster.cancel(job)
    processes.until(lambda: not jobs.spread.living())
    jobs.spread.take_away("hold")
    jobs.succeeds(jobs.submit())


@pytest.mark.parametrize("dispatch", ["mpi"], indirect=True)
@pytest.mark.parametrize(
    ("site", "placement"),
    on_each_site(
        "placements",
        night=("a rank a device", "mpiexec", "a rank a node", "fill-up", "a device bound to each"),
    ),
    indirect=["site"],
)
def test_every_device_that_was_granted_computes(jobs: SpreadJobs, placement: str) -> None:
    """However the ranks lie: one shard a device at once, all devices, on all nodes; same bits."""
    way = jobs.cluster.placements[placement]
    jobs.spread.put("hold")
    job = jobs.submit(*way.options, launcher=way.launcher, workers=way.workers)
    jobs.all_at_work(sum(way.counts))
    jobs.spread.take_away("hold")
    jobs.succeeds(job)
    nodes = Counter(device.split()[0] for device in jobs.spread.uses())
    assert tuple(sorted(nodes.values())) == way.counts, jobs.cluster.report()
    assert set(jobs.spread.starts().values()) == {1}


@enough("slurm mpi", "grid_engine pool")
def test_the_digits_have_the_same_bits(night: Night, dispatch: str, tmp_path: Path) -> None:
    """One job computes all shards on the devices that the profile asks for; jobs have no more."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    own = {"input": "digits.npy", "shards": 24, "materialize": False}
    night.workspace.configure(**own, dispatch=dispatch)
    done = night.run("--until", dispatch, *night.with_devices(4, tmp_path))
    assert done.code == 0, done.output
    summed = night.workspace.run()  # the reduce is the same job under every dispatch: here, soon
    assert summed.code == 0, summed.output
    assert night.sum().tobytes() == sum_of_squares(digits).tobytes()
    assert night.starts() == Counter([dispatch])
    devices = {(r["node"], r["device"]["uuid"]) for r in night.receipts().values()}
    assert 1 <= len(devices) <= DEVICES[dispatch]  # one may be done before the next has started
    night.workspace.configure(**own, dispatch="jobs")
    assert night.workspace.run("--dry-run", profile=night.cluster.profile).jobs == set()


@enough("grid_engine jobs", ways=("jobs", *DEVICES))
@pytest.mark.fault("snakemake killed by -9 and started again")
@pytest.mark.fault("two runs at once")
def test_a_killed_snakemake_never_costs_a_shard_twice(night: Night, dispatch: str) -> None:
    """Beside living jobs of a killed run a new one does not start; after them, only the sum."""
    night.folder_of(2)
    own = {"input": "stack", "shards": 2, "materialize": False, "backend": "numpy"}
    night.workspace.configure(**own, dispatch=dispatch)
    jobs = [f"multiply 0000{i}" for i in range(2)] if dispatch == "jobs" else [dispatch]
    run = night.start(*night.held())
    night.wait_for("its jobs run", lambda: len(night.running()) == len(jobs))
    night.killed(run)
    refused = night.run()
    assert refused.code == 75
    words = f"{len(jobs)} jobs of an earlier run still wait or work on results/default"
    assert words in refused.output

    night.release()
    night.wait_for("the queue is empty", night.idle)
    assert night.starts() == Counter(jobs)
    plan = night.workspace.run("--dry-run", profile=night.cluster.profile)
    assert plan.jobs == {"ledger", "reduce", "report"}, plan.output
