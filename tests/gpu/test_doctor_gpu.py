"""The doctor on real devices: each is named, and computes."""

import json

from shardwise.devices import nvml

from tests.factories import run
from tests.gpu.conftest import needs_gpu

pytestmark = needs_gpu


def test_every_device_is_named_and_computes(tmp_path, environment):
    """With the UUIDs and names that NVML gives; driver, cupy and KvikIO fit together."""
    done = run("doctor", "--json", "--time-limit", 100, cwd=tmp_path, env=environment)
    found = [one for one in json.loads(done.stdout)["findings"] if one["section"] == "gpus"]
    levels = {finding["name"]: finding["level"] for finding in found}
    assert (levels["driver"], levels["cupy"], levels["kvikio"]) == ("ok", "ok", "ok")
    told = {f["facts"]["uuid"]: f for f in found if "works" in f["facts"]}
    present = nvml.present()
    assert list(told) == [device.uuid for device in present]
    for device in present:
        assert told[device.uuid]["found"].startswith(device.name)
        assert told[device.uuid]["facts"]["works"], told[device.uuid]["found"]
