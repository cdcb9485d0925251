"""The pool on NumPy and on all GPUs of this machine gives the same bits."""

import pytest
from shardwise.devices import nvml

from tests import factories

SIZES = {"numpy": (24, 128, 128), "cupy": (96, 1024, 1024)}


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_all_devices_give_the_bits_of_one(tmp_path, backend, keep, environment):
    """Each device has one process to the end; files are those of shards multiplied one by one."""
    left = factories.noise(SIZES[backend], "float32", seed=5)
    over = {"backend": backend, "keep": keep, "shards": 12}
    made = factories.plan(tmp_path, left, **over)
    done = factories.run("dispatch", "--plan", made.results.plan, env=environment)
    assert done.returncode == 0, done.stderr
    receipts = [factories.receipt(made, shard) for shard in made.shards]
    users = {(receipt.device.uuid, receipt.process) for receipt in receipts}
    gpus = {device.uuid for device in nvml.present()} if backend == "cupy" else {None}
    assert {uuid for uuid, _ in users} <= gpus
    assert len(users) == len({uuid for uuid, _ in users})
    before = {shard: factories.file(made, "product", shard).read_bytes() for shard in made.shards}
    for shard in list(made.shards)[:2]:
        factories.file(made, "receipt", shard).unlink()
        words = ("--plan", made.results.plan, "--shard", shard)
        done = factories.run("multiply", *words, env=environment)
        assert done.returncode == 0, done.stderr
        assert factories.file(made, "product", shard).read_bytes() == before[shard]
