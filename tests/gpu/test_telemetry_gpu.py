"""Telemetry on a GPU: it agrees with nvidia-smi beside it, and the time of a shard adds up."""

import re
import statistics
import subprocess
from dataclasses import asdict

import pytest
from shardwise.devices.gauge import Gauge
from shardwise.multiply import backend
from shardwise.multiply import session as sessions
from shardwise.multiply.job import ShardJob
from shardwise.records.timeline import STAGES

from tests import factories
from tests.gpu.conftest import needs_gpu

pytestmark = needs_gpu

LONG = """
def work(xp, block):
    out = block @ block
    for _ in range(TIMES if xp.__name__ == "cupy" else 0):  # the plan tries it on NumPy
        out = xp.matmul(block, block, out=out)
    return out
"""
QUERIES = {
    "utilisation": ("utilization.gpu", 0.01),
    "memory_bytes": ("memory.used", 1024**2),
    "power_watts": ("power.draw", 1.0),
    "temperature_celsius": ("temperature.gpu", 1.0),
    "clock_sm_hertz": ("clocks.sm", 1e6),
}


def long_session(tmp_path, times):
    """A session with a shard that holds few bytes and takes long: 480 times are ten seconds."""
    own = tmp_path / "own.py"
    own.write_text(LONG.replace("TIMES", str(times)))
    left = factories.noise((4, 4096, 4096), "float32")
    made = factories.plan(
        tmp_path, left, backend="cupy", product=f"{own}:work", keep="sum", shards=1,
        materialize=False,
    )  # fmt: skip
    return made, sessions.Session(made, 0)


def beside(uuid: str, work) -> dict[str, list[float]]:
    """What nvidia-smi says of a device while something is done."""
    line = ["nvidia-smi", f"--query-gpu={','.join(query for query, _ in QUERIES.values())}",
            "--format=csv,noheader,nounits", f"--id={uuid}", "--loop-ms=250"]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as smi:
        smi.stdout.readline()
        work()
        smi.terminate()
        rows = [row.split(", ") for row in smi.stdout.read().splitlines()]
    whole = [row for row in rows if len(row) == len(QUERIES)]
    found = {
        name: [float(row[i]) * unit for row in whole if row[i].strip()[:1].isdigit()]
        for i, (name, (_, unit)) in enumerate(QUERIES.items())
    }
    return {name: values for name, values in found.items() if values}


def test_it_agrees_with_nvidia_smi(tmp_path):
    """Means within 15 %, and what hardly changes within less; energy is power times time."""
    made, session = long_session(tmp_path, 480)
    ShardJob(session, "00000").run()  # kernels are compiled, the device is warm
    seen = beside(session.device["uuid"], ShardJob(session, "00000").run)
    receipt = factories.receipt(made)
    told = receipt.telemetry
    assert told["samples"] >= 4
    assert set(seen) >= {"memory_bytes", "temperature_celsius"}
    for name, values in seen.items():
        theirs = statistics.fmean(values)
        rel = 0.02 if name == "memory_bytes" else 0.15
        assert told[name]["mean"] == pytest.approx(theirs, rel=rel), name
        assert told[name]["max"] <= 1.1 * max(values), name
    watts = statistics.fmean(seen["power_watts"])
    assert told["energy_joules"] == pytest.approx(watts * told["seconds"], rel=0.2)
    assert told["utilisation"]["max"] > 0.9
    # Most of such a shard is computing, by events on the host's clock, and it adds up.
    held, busy = receipt.timeline.held, receipt.timeline.busy
    seconds = receipt.finished - receipt.started
    assert sum(held.values()) == pytest.approx(seconds, abs=1e-3)
    assert held["compute"] > 0.8 * seconds
    assert busy["compute"] == pytest.approx(receipt.stages["multiply"], rel=0.05)
    assert list(made.results.live.glob("*")) == []


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_the_time_of_a_tiny_shard_adds_up(tmp_path, keep):
    """It has two samples, and every stage some time."""
    left = factories.noise((64, 128, 128), "float32")
    made = factories.plan(tmp_path, left, backend="cupy", keep=keep, shards=1, materialize=False)
    session = sessions.Session(made, 0)
    for _ in range(2):
        ShardJob(session, "00000").run()
    receipt = factories.receipt(made)
    told, telemetry = receipt.timeline, receipt.telemetry
    seconds = receipt.finished - receipt.started
    assert sum(told.held.values()) == pytest.approx(seconds, abs=1e-3)
    assert all(0 < told.busy[stage] <= seconds for stage in STAGES)
    assert told.work["upload"] == told.work["read"] == left.nbytes
    assert telemetry["samples"] >= 2
    assert telemetry["energy_joules"] is None or telemetry["energy_joules"] >= 0


def test_a_whole_gpu_answers_what_it_must():
    """Memory, and on a data centre's GPU all else; nothing raises."""
    device = backend.load_backend("cupy")[1]
    found = Gauge(device["uuid"]).sample()
    assert found.memory_total_bytes > found.memory_bytes > 0
    if re.search("[ABH][12]00", device["name"]):
        told = asdict(found)
        told.pop("memory_unlisted_bytes")  # in a container no process may be listed
        assert [name for name, value in told.items() if value is None] == []
