"""The doctor on real devices: each computes, and who holds one is named."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardwise.devices import nvml

from tests.factories import run
from tests.gpu.conftest import needs_gpu

pytestmark = needs_gpu

GIB = 2**30
HOLD = f"""
import cupy
held = cupy.zeros({4 * GIB}, "uint8")
cupy.cuda.Device().synchronize()
print(cupy.cuda.runtime.getDevice(), flush=True)
input()
"""


def section(folder: Path, **environment: str) -> list[dict[str, Any]]:
    """The doctor's findings about GPUs, with leases in a folder of the test."""
    own = {"SHARDWISE_LEASES": str(folder / "leases"), **environment}
    # A test before this one may have taken a device, and set the variable for this process.
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = run("doctor", "--json", "--time-limit", 100, cwd=folder, env=env | own)
    found = json.loads(done.stdout)["findings"]
    return [finding for finding in found if finding["section"] == "gpus"]


def test_every_device_is_named_and_computes(tmp_path: Path) -> None:
    """With the UUIDs and names that NVML gives; driver, cupy and KvikIO fit."""
    found = section(tmp_path)
    levels = {finding["name"]: finding["level"] for finding in found}
    assert (levels["driver"], levels["cupy"], levels["kvikio"]) == ("ok", "ok", "ok")
    told = {f["facts"]["uuid"]: f for f in found if "works" in f["facts"]}
    present = nvml.present()
    assert list(told) == [device.uuid for device in present]
    for device in present:
        assert told[device.uuid]["found"].startswith(device.name)
        assert told[device.uuid]["facts"]["works"], told[device.uuid]["found"]


def test_memory_that_is_held_is_told(tmp_path: Path) -> None:
    """By the process that holds it; a container may hide that."""
    uuid = nvml.present()[0].uuid
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
    )  # fmt: skip
    try:
        assert holding.stdout.readline() == b"0\n"
        facts = [f["facts"] for f in section(tmp_path) if f["facts"].get("uuid") == uuid]
    finally:
        holding.communicate(b"\n")
    held = [fact["memory"] for fact in facts if "pid" in fact]
    assert not held or None in held or max(held) > 4 * GIB
