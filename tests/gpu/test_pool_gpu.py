"""The pool on NumPy and on all GPUs of this machine: bits, reading ahead, killed workers."""

import subprocess

import numpy as np
import pytest
from shardwise.devices import nvml

from tests import factories
from tests.gpu.conftest import HAS_DRIVER

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


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_all_devices_give_the_bits_of_one(tmp_path, backend, keep, pooled, environment):
    """Each device is used by one process to its end; files are those of single shards."""
    left = factories.noise(stack(backend).shape, "float32", seed=5)
    over = {"backend": backend, "keep": keep, "shards": SHARDS}
    made = factories.plan(tmp_path, left, **over)
    pooled(made)
    receipts = [factories.receipt(made, shard) for shard in made.shards]
    users = {(receipt.device.uuid, receipt.process) for receipt in receipts}
    gpus = {device.uuid for device in here()} if backend == "cupy" else {None}
    assert {uuid for uuid, _ in users} <= gpus
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
    attempts = {s: factories.receipt(made, s).attempt for s in made.shards}
    assert attempts.pop(first) == 2
    # At most one other: what that process was still writing.
    assert sorted(attempts.values()) in ([1] * (SHARDS - 1), [1] * (SHARDS - 2) + [2])
    np.testing.assert_array_equal(factories.products(made), left @ left)
    assert factories.leftovers(tmp_path) == []
    for device in here():
        assert device.free > free[device.uuid] - SOME
