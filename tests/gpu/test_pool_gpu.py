"""The pool on NumPy and on all GPUs of this machine: bits, reading ahead, killed workers."""

import subprocess

import numpy as np
import pytest
from shardwise.devices import nvml

from tests import factories
from tests.gpu.conftest import HAS_DRIVER, needs_gpu

SHARDS = 12
SIZES = {"numpy": (24, 128), "cupy": (96, 1024)}
"""Matrices, and their rows and columns."""

SOME = 2**29
"""Bytes of a device that come and go beside what a test does."""

# Many products under way on the device, and then no more of this process.
KILL = """
import os, pathlib, signal

def square(xp, block):
    mark = pathlib.Path(__file__).with_name("armed")
    if mark.exists() and int(block[0, 0, 0]) == 8:
        mark.unlink()
        for _ in range(200):
            block @ block
        os.kill(os.getpid(), signal.SIGKILL)
    return block @ block
"""


# A device does not compute alone: its first shard waits until the others have begun one, too.
TOGETHER = """
import os, pathlib, time

def square(xp, block):
    here = pathlib.Path(__file__).parent
    if (here / "devices").exists():
        wanted, end = int((here / "devices").read_text()), time.monotonic() + 60
        (here / f"met.{os.getpid()}").touch()  # one process a device
        while len(list(here.glob("met.*"))) < wanted:
            assert time.monotonic() < end, "a device stays away"
            time.sleep(0.01)
    return block @ block
"""


def here():
    """The GPUs of this machine; none without a driver."""
    return nvml.present() if HAS_DRIVER else []


@pytest.fixture
def pooled(environment):
    """Compute what is missing of a plan, by the command line."""

    def run(made):
        line = factories.command("dispatch", "--plan", made.results.plan)
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def stack(backend):
    """Small integers, the first number of each matrix its place in the stack."""
    count, dim = SIZES[backend]
    left = factories.stack((count, dim, dim))
    left[:, 0, 0] = np.arange(count)
    return left


def written(made):
    """The receipts of all shards, in the order in which they were begun."""
    found = [factories.receipt(made, shard) for shard in made.shards]
    return sorted(found, key=lambda receipt: receipt.started)


def pids(made, shard):
    """The processes that began a shard; of one that went well at once the receipt knows."""
    journal = made.results.starts(made.shards[shard].name)
    if not journal.exists():
        return [factories.receipt(made, shard).process]
    return [int(line.split("\t")[2]) for line in journal.read_text().splitlines()]


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_all_devices_give_the_bits_of_one(tmp_path, backend, keep, pooled, environment):
    """Each device is used by one process to its end; files are those of single shards."""
    left = factories.noise(stack(backend).shape, "float32", seed=5)
    over = {"backend": backend, "keep": keep, "shards": SHARDS}
    made = factories.plan(tmp_path, left, **over)
    pooled(made)
    users = {(r.device.uuid, *pids(made, r.shard)) for r in written(made)}
    assert {uuid for uuid, _ in users} <= (
        {d.uuid for d in here()} if backend == "cupy" else {None}
    )
    assert len(users) == len({uuid for uuid, _ in users})
    before = {shard: factories.file(made, "product", shard).read_bytes() for shard in made.shards}
    for shard in list(made.shards)[:2]:
        factories.file(made, "receipt", shard).unlink()
        done = factories.run(
            "multiply", "--plan", made.results.plan, "--shard", shard, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert factories.file(made, "product", shard).read_bytes() == before[shard]


def test_a_worker_killed_in_its_products(tmp_path, backend, pooled):
    """It is replaced on its device; its shard alone is tried again, and all bits are right."""
    (tmp_path / "own.py").write_text(KILL)
    left = stack(backend)
    product = f"{tmp_path / 'own.py'}:square"
    made = factories.plan(
        tmp_path, left, backend=backend, product=product, shards=SHARDS, materialize=False
    )
    (tmp_path / "armed").touch()
    first = next(shard for shard, row in made.shards.items() if row.start <= 8 < row.stop)
    assert made.shard(first).start == 8  # else no block begins with that matrix
    free = {device.uuid: device.free for device in here()}
    said = pooled(made)
    assert f"shard {first}: its process was killed by signal 9 (SIGKILL" in said
    attempts = {r.shard: r.attempt for r in written(made)}
    assert attempts.pop(first) == 2
    # At most one other: what that process was still writing.
    assert sorted(attempts.values()) in ([1] * (SHARDS - 1), [1] * (SHARDS - 2) + [2])
    np.testing.assert_array_equal(factories.products(made), left @ left)
    assert factories.leftovers(tmp_path) == []
    for device in here():
        assert device.free > free[device.uuid] - SOME


@needs_gpu
def test_every_device_takes_part(tmp_path, pooled):
    """Each GPU of this machine computes, all at the same time, one process each."""
    (tmp_path / "own.py").write_text(TOGETHER)
    made = factories.plan(
        tmp_path, stack("cupy"), backend="cupy", product=f"{tmp_path / 'own.py'}:square",
        shards=SHARDS, materialize=False,
    )  # fmt: skip
    (tmp_path / "devices").write_text(str(len(here())))
    pooled(made)
    assert {r.device.uuid for r in written(made)} == {d.uuid for d in here()}
