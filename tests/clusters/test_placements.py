"""A job of MPI ranks that compute all shards or sum them, however they lie on its nodes."""

import json
import shlex
import subprocess
from collections import Counter

import numpy as np
import pytest
from shardwise.numerics.tree import TreeSum

from tests import factories, fake_devices, processes
from tests.clusters.cluster import Way
from tests.night import Night
from tests.places import KINDS, case

pytestmark = pytest.mark.timeout(600)
SHARDS = 12
DAY = ("slurm round-robin killed", "slurm two ranks a node cancelled",
       "grid_engine round-robin cancelled", "grid_engine a rank a host whole")  # fmt: skip


def words(night: Night, *more: str) -> list[str]:
    """The command that computes what is missing, on a node with pretended devices."""
    fake = fake_devices.environment(night.cluster.devices, night.root / "leases")
    variables = [f"{name}={value}" for name, value in fake.items()]
    plan = night.workspace.file("plan.tsv")
    return ["env", *variables, *factories.command("dispatch", "--plan", plan, *more)]


def submit(night: Night, way: Way) -> int:
    """Submit the command that computes what is missing as a job of MPI ranks."""
    own = ("--dispatch", "mpi", "--launcher", way.launcher, "--workers", way.workers)
    return night.cluster.submit(shlex.join(words(night, *own)), *way.options)


fault = pytest.mark.fault
FAULTS = {
    "whole": (),
    "killed": (fault("a rank that is killed"),),
    "cancelled": (fault("a job that is cancelled, SIGTERM, Ctrl-C"), fault("two runs at once")),
}
WAYS = [f"{kind} {way} {what}" for kind in KINDS for way in KINDS[kind].placements
        for what in FAULTS]  # fmt: skip


@pytest.mark.parametrize(
    ("site", "way"), [case(way, DAY, marks=FAULTS[way.split()[-1]]) for way in WAYS],
    indirect=["site"],
)  # fmt: skip
def test_every_device_that_was_granted_computes(night, way):
    """All granted devices, and no others, compute one shard at a time each, with the bits of NumPy.

    If a rank is killed or the job cancelled, no process lives on, and another job does the rest.
    """
    night.cluster.need_several_nodes()
    name, _, what = way.rpartition(" ")
    placed = night.cluster.placements[name]
    own = {"product": f"{night.root}/gated.py:square", "input": str(night.root / "stack")}
    night.gated(SHARDS, dispatch="mpi", backend="auto", **own)
    planned = factories.run("plan", "--configfile", "mine.yaml", cwd=night.root)
    assert planned.returncode == 0, planned.stderr
    job = submit(night, placed)
    night.wait_for("all compute", lambda: len(night.at_gate()) == sum(placed.counts))
    found = {tuple(path.read_text().split()[2:]) for path in night.root.glob("at.?????")}
    assert tuple(sorted(Counter(node for node, _ in found).values())) == placed.counts
    workers = [night.process(shard) for shard in night.at_gate()]
    if what == "killed":  # the others go on
        processes.kill(processes.parents(workers[:1]))
        processes.until(lambda: not processes.living(workers[:1]))
        night.open()
    elif what == "cancelled":
        second = subprocess.run(
            words(night, "--dispatch", "pool"), capture_output=True, text=True, check=False
        )
        assert second.returncode == 75, second.stderr
        assert "its shards are being computed by another process" in second.stderr
        night.cluster.cancel(job)
    before = {}
    if what != "whole":
        assert night.cluster.finish(job) != 0
        processes.until(lambda: not processes.living(workers))
        before = night.receipts()
        assert len(before) < SHARDS
        job = submit(night, placed)
    night.open()
    assert night.cluster.finish(job) == 0, night.cluster.printed(job)
    receipts = night.receipts()
    assert {shard: receipts[shard] for shard in before} == before
    products = [np.load(path) for path in sorted(night.workspace.file("products").glob("*.npy"))]
    assert np.array_equal(np.concatenate(products), night.stack @ night.stack)


ON_TWO = ("slurm two nodes", "grid_engine two hosts")
REDUCES = [f"{kind} {way}" for kind in KINDS for way in KINDS[kind].reduces]


@pytest.mark.fault("a rank that raises")
@pytest.mark.parametrize(("site", "way"), [case(way, ON_TWO) for way in REDUCES], indirect=["site"])
def test_the_ranks_are_where_they_were_granted(idle, way, tmp_path):
    """The job's tasks form one world on its nodes, whose sum has the bits of the tree.

    A missing product ends the job with 3, and its error is printed once.
    """
    idle.need_several_nodes()
    found = idle.reduces[way]
    left = factories.noise((9, 8, 8))
    made = factories.listed(factories.plan(tmp_path, left, shards=3, materialize=False))
    words = ("reduce", "--plan", made.results.plan, "--launcher", found.launcher)
    line = shlex.join(factories.command(*words))
    job = idle.submit(line, *found.options)
    assert idle.finish(job) == 0, idle.printed(job)
    on = json.loads(made.results.summary.read_text())["nodes"]
    assert tuple(sorted(on.values(), reverse=True)) == found.counts
    total = TreeSum(np, (8, 8), "float64")
    total.add(factories.products(made), 0)
    assert np.load(made.results.statistic("sum")).tobytes() == total.values()[0].tobytes()
    made.results.statistic("sum").unlink()
    factories.file(made, "product", "00001").unlink()
    job = idle.submit(line, *found.options)
    assert idle.finish(job) == 3, idle.printed(job)
    assert (idle.printed(job).count(" ERROR "), "00001" in idle.printed(job)) == (1, True)
    assert not made.results.statistic("sum").exists()
