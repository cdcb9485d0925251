"""A device that failed, and the workers of its run: whole processes, on fake devices."""

import os
import uuid

from shardwise import host
from shardwise.records import failures

from tests import factories, fake_devices

# The function's file makes every product wrong on one of the devices.
FUNCTION = """
import os
from shardwise.errors import DeviceFailed
from shardwise.multiply import checks

honest = checks.ShardChecks.examine

def examine(self, report):
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "{bad}":
        raise DeviceFailed("the product is wrong", suspect=True)
    honest(self, report)

checks.ShardChecks.examine = examine

def own(xp, block):
    return block @ block
"""


def gpu(number):
    """The UUID of a fake device."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host.node()} {number}')}"


def test_no_worker_of_the_run_takes_a_device_that_failed(tmp_path, monkeypatch):
    """The only one: they end with 75 and say why. Beside another, that one computes all."""
    monkeypatch.setenv(failures.RUN, "0123456789ab")
    (tmp_path / "own.py").write_text(FUNCTION.format(bad=gpu(0)))
    keys = {"product": f"{tmp_path}/own.py:own", "backend": "auto", "materialize": False}
    made = factories.plan(tmp_path, factories.stack((3, 6, 6)), shards=3, **keys)
    wrong, left = f"the product is wrong ({gpu(0)} of", "no device is left for this task"
    for devices, code, said in ((1, 75, wrong), (1, 75, left), (2, 0, "written")):
        env = os.environ | fake_devices.environment(devices, tmp_path / "leases")
        done = factories.run("dispatch", "--plan", made.results.plan, env=env)
        assert done.returncode == code, done.stderr
        assert list(failures.barred(made.results)) == [gpu(0)]
        assert said in done.stderr
    assert {factories.receipt(made, shard).device.uuid for shard in made.shards} == {gpu(1)}
    assert [path.name for path in made.results.failed.iterdir()] == [f"device-{gpu(0)}.json"]
