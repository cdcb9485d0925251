"""Telemetry: what a driver tells becomes a summary, a table and joules; what it refuses is null."""

import itertools
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest
from mpi4py import MPI
from shardwise.devices import gauge as gauges
from shardwise.devices import telemetry
from shardwise.devices.gauge import Gauge, Sample
from shardwise.devices.telemetry import Recorder
from shardwise.multiply import batch, job, live, session
from shardwise.records import ledger, receipts
from shardwise.reduce import job as jobs

from tests import factories

WHOLE, INSTANCE = "GPU-11111111-2222-3333-4444-555555555555", "MIG-11111111"
TOLD = {
    "utilisation": 0.5, "memory_bytes": 3000, "memory_total_bytes": 9000, "power_watts": 250.5,
    "temperature_celsius": 60, "clock_sm_hertz": 1_500_000_000,
    "clock_memory_hertz": 2_600_000_000, "throttled": ("power_cap", "hw_thermal"),
    "ecc_corrected": 4, "ecc_uncorrected": 1, "energy_joules": 5000.25, "processes": 2,
    "memory_unlisted_bytes": 500,
}  # fmt: skip
ANSWERS = {
    "GetUtilizationRates": lambda gpu: SimpleNamespace(gpu=50, memory=99),
    "GetMemoryInfo": lambda gpu, version=None: SimpleNamespace(
        used=3000 if version else 3500, total=9000
    ),
    "GetPowerUsage": lambda gpu: 250_500,
    "GetTemperatureV": lambda gpu, sensor: 60,
    "GetClockInfo": lambda gpu, clock: {1: 1500, 2: 2600}[clock],
    "GetCurrentClocksEventReasons": lambda gpu: 0x1 | 0x4 | 0x40,
    "GetTotalEccErrors": lambda gpu, kind, since: {0: 4, 1: 1}[kind],
    "GetTotalEnergyConsumption": lambda gpu: 5_000_250,
    "GetComputeRunningProcesses": lambda gpu: [
        SimpleNamespace(pid=pid, usedGpuMemory=taken) for pid, taken in ((7, 1000), (8, 1500))
    ],
}


@pytest.fixture
def driver(monkeypatch):
    """A driver that answers everything, and counts the questions; answers may be replaced.

    A second goes by between two samples.
    """
    answers, asked = dict(ANSWERS), []

    def question(name):
        def ask(*arguments, **named):
            asked.append(name)
            if name not in answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answers[name](*arguments, **named)

        return ask

    for name in (*ANSWERS, "GetTemperature", "GetCurrentClocksThrottleReasons"):
        monkeypatch.setattr(pynvml, f"nvmlDevice{name}", question(name))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: asked.append("init"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    seconds = itertools.count()
    monkeypatch.setattr(gauges, "monotonic", lambda: float(next(seconds)))
    return SimpleNamespace(answers=answers, asked=asked)


def test_a_gauge_speaks_in_base_units(driver):
    """Watts, bytes, hertz, joules and shares, whatever NVML counts in."""
    assert Gauge(WHOLE).sample() == Sample(**TOLD)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_refusal_is_of_one_quantity_and_for_ever(driver, name):
    """The others go on, and nobody asks in vain again."""
    del driver.answers[name]
    gauge = Gauge(WHOLE)
    first, second = gauge.sample(), gauge.sample()
    assert first == second
    lost = {key for key, value in TOLD.items() if getattr(first, key) != value}
    assert all(getattr(first, key) is None for key in lost)
    assert lost
    asked = driver.asked.count(name)
    gauge.sample()
    assert driver.asked.count(name) == asked


def test_older_drivers_are_asked_by_older_names(driver):
    """Temperature, clocks and memory have had other names before."""
    del driver.answers["GetTemperatureV"], driver.answers["GetCurrentClocksEventReasons"]

    def memory(gpu, version=None):
        if version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(used=3500, total=9000)

    driver.answers["GetMemoryInfo"] = memory
    driver.answers["GetTemperature"] = lambda gpu, sensor: 61
    driver.answers["GetCurrentClocksThrottleReasons"] = lambda gpu: 0x1
    found = Gauge(WHOLE).sample()
    assert (found.temperature_celsius, found.throttled, found.memory_bytes) == (61, (), 3500)


def test_an_instance_has_no_power_of_its_own(driver):
    """What the whole GPU draws and moves is the work of others, too."""
    found = Gauge(INSTANCE).sample()
    assert found.power_watts is found.energy_joules is None
    assert found.memory_bytes == 3000


def test_memory_that_no_process_has_is_told(driver):
    """Not where a process keeps its own to itself, nor where none is listed, as in a container."""
    for listed, told in (([(7, 2900)], 100), ([(7, None)], None), ([], None)):
        driver.answers["GetComputeRunningProcesses"] = lambda gpu, listed=listed: [
            SimpleNamespace(pid=pid, usedGpuMemory=taken) for pid, taken in listed
        ]
        found = Gauge(WHOLE).sample()
        assert (found.processes, found.memory_unlisted_bytes) == (len(listed), told)


def test_an_answer_serves_for_a_moment(driver, monkeypatch):
    """Two shards that follow each other fast ask once."""
    gauge = Gauge(WHOLE)
    for at, times in ((5.0, 1), (5.2, 1), (5.26, 2)):
        monkeypatch.setattr(gauges, "monotonic", lambda at=at: at)
        assert gauge.sample().utilisation == 0.5
        assert driver.asked.count("GetUtilizationRates") == times


def test_the_counter_of_energy_is_asked_once_a_second(driver, monkeypatch):
    """It takes milliseconds; between two answers power goes on, and what was told never falls."""
    counted = iter([5_000_250, 5_100_250, 5_300_250])
    driver.answers["GetTotalEnergyConsumption"] = lambda gpu: next(counted)
    gauge, found = Gauge(WHOLE), []
    for at in (10.0, 10.4, 10.8, 11.0, 11.2, 12.0):
        monkeypatch.setattr(gauges, "monotonic", lambda at=at: at)
        found.append(round(gauge.sample().energy_joules, 3))
    # 250.5 W from 5000.25 J on, then from 5100.25 J, which is less than was told before.
    assert found == [5000.25, 5100.45, 5200.65, 5200.65, 5200.65, 5300.25]
    assert driver.asked.count("GetTotalEnergyConsumption") == 3


def test_a_driver_that_tells_no_power_is_asked_for_energy_each_time(driver):
    """Nothing says how the counter went on."""
    del driver.answers["GetPowerUsage"]
    gauge = Gauge(WHOLE)
    assert [gauge.sample().energy_joules for _ in range(3)] == [5000.25] * 3
    assert driver.asked.count("GetTotalEnergyConsumption") == 3


def test_a_driver_that_hangs_holds_up_one_thread(driver):
    """Who asks meanwhile has no answer, at once; once the driver answers, all of them."""
    asked, gate = threading.Event(), threading.Event()
    driver.answers["GetPowerUsage"] = lambda gpu: asked.set() or (gate.wait(60) and 250_500)
    gauge = Gauge(WHOLE)
    thread = threading.Thread(target=gauge.sample)
    thread.start()
    assert asked.wait(60)
    assert gauge.sample() == Sample()
    gate.set()
    thread.join()
    assert gauge.sample() == Sample(**TOLD)


@pytest.mark.parametrize("error", [pynvml.NVMLError(999), OSError("no library"), ImportError("no")])
def test_a_driver_that_does_not_start_costs_no_shard(monkeypatch, error):
    """Then nothing is known, and nothing raised."""

    def fail():
        raise error

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert Gauge(WHOLE).sample() == Sample()


# Summaries.


def recorded(monkeypatch, samples: list[tuple[float, Sample]]) -> dict:
    """The summary of samples that were taken at these seconds from the beginning."""
    moments, answers = map(iter, zip(*samples, strict=True))
    monkeypatch.setattr(telemetry.time, "perf_counter", lambda: 100.0 + next(moments))
    recorder = Recorder(SimpleNamespace(sample=lambda: next(answers)), 100.0)
    for _ in samples:
        recorder.sample()
    return recorder.summarize()


def test_a_summary_weighs_by_time(monkeypatch):
    """Two seconds at 100 W count twice as much as one at 400 W; counters by what they rose."""
    rows = [(1.0, 100.0, 50.0), (3.0, 100.0, 250.0), (3.0, 400.0, 250.0), (4.0, 400.0, 650.0)]
    samples = [
        (at, Sample(power_watts=watts, energy_joules=joules, ecc_corrected=int(at)))
        for at, watts, joules in rows
    ]
    told = recorded(monkeypatch, samples)
    assert told["power_watts"] == {"mean": 200.0, "max": 400.0}
    assert told["energy_joules"] == 600.0
    assert told["ecc_corrected"] == 3
    assert (told["samples"], told["seconds"]) == (4, 3.0)
    assert told["utilisation"] is told["ecc_uncorrected"] is told["throttled_seconds"] is None
    alone = recorded(monkeypatch, samples[:1])
    assert alone["power_watts"] == {"mean": 100.0, "max": 100.0}


@pytest.mark.parametrize(
    ("name", "values", "key", "told"),
    [
        ("power_watts", (100.0, 300.0), "energy_joules", 200.0),  # a ramp, by trapezoids
        ("power_watts", (5.0, 6.0, None), "energy_joules", None),
        # A counter that fell has seen a reset of the driver: no number is better than a wrong one.
        ("energy_joules", (5.0, 4.0), "energy_joules", None),
        ("energy_joules", (None, None), "energy_joules", None),
        ("energy_joules", (5.0, 6.0, None), "energy_joules", None),
        ("throttled", ((), ("a",), ("a", "b"), ()), "throttled_seconds", {"a": 2.0, "b": 1.0}),
        ("throttled", ((), (), ()), "throttled_seconds", {}),
    ],
)
def test_energy_and_throttles(monkeypatch, name, values, key, told):
    """Energy is the counter's, or the power's, if all samples tell it; null else.

    Between two samples, half of the time the clocks are held back as each of them says.
    """
    samples = [(float(i), Sample(**{name: value})) for i, value in enumerate(values)]
    assert recorded(monkeypatch, samples)[key] == told


# A run.


def on_a_device(monkeypatch, driver):
    """Let NumPy pass for a device with a driver: its sessions have a gauge, and short shards."""
    monkeypatch.setattr(live, "_EVERY", 1000.0)  # on a busy machine, too
    begin = session.Session.__init__

    def beginning(self, *arguments, **named):
        begin(self, *arguments, **named)
        self.gauge = Gauge(WHOLE)

    monkeypatch.setattr(session.Session, "__init__", beginning)


def test_a_receipt_tells_what_the_device_did(tmp_path, monkeypatch, driver):
    """Of a tiny shard too: two samples, and its energy."""
    joules = iter(range(1000, 9000, 500))
    driver.answers["GetTotalEnergyConsumption"] = lambda gpu: next(joules)
    on_a_device(monkeypatch, driver)
    made = factories.computed(factories.plan(tmp_path, factories.stack((4, 8, 8)), shards=1))
    told = factories.receipt(made).telemetry
    assert (told["samples"], told["energy_joules"]) == (2, 0.5)
    assert told["utilisation"] == {"mean": 0.5, "max": 0.5}
    assert told["memory_total_bytes"] == 9000


def test_a_longer_shard_is_sampled_now_and_then(tmp_path, monkeypatch, driver):
    """Within its own seconds; products and receipt are the only files that it leaves."""
    on_a_device(monkeypatch, driver)
    monkeypatch.setattr(live, "_EVERY", 0.01)
    work, asked = batch.Batches.work, driver.asked

    def until_sampled(*arguments):
        before = asked.count("GetPowerUsage")
        while asked.count("GetPowerUsage") < before + 2:
            time.sleep(0.005)
        return work(*arguments)

    monkeypatch.setattr(batch.Batches, "work", until_sampled)
    made = factories.plan(tmp_path, factories.stack((4, 8, 8)), shards=1, materialize=False)
    job.run_shard(made, "00000")
    receipt = factories.receipt(made)
    told = receipt.telemetry
    assert told["samples"] >= 3
    assert 0 < told["seconds"] <= receipt.finished - receipt.started + 1e-3
    assert told["power_watts"] == {"mean": 250.5, "max": 250.5}
    names = {path.name for path in made.results.products.iterdir()}
    assert names == {"00000.npy", "00000.json"}


def test_the_summary_has_the_energy_of_the_run(tmp_path, monkeypatch, driver):
    """The sum over the shards that tell theirs; without any there is no number."""
    joules = iter(range(1000, 99000, 500))
    driver.answers["GetTotalEnergyConsumption"] = lambda gpu: next(joules)
    made = factories.plan(tmp_path, factories.stack((6, 4, 4)), shards=3, materialize=False)
    found = []
    for shard in made.shards:
        if shard == "00001":
            on_a_device(monkeypatch, driver)
        job.run_shard(made, shard)
    for _ in range(2):
        ledger.write(made)
        jobs.run(MPI.COMM_SELF, made.results.plan, ["sum"])
        summary = receipts.read(made.results.summary, receipts.SumReceipt)
        found.append((summary.energy_joules, summary.energy_shards))
        monkeypatch.undo()
        factories.computed(made)
    assert found == [(1.0, 2), (None, 0)]


def test_a_sampler_that_dies_costs_no_shard(tmp_path, monkeypatch, driver):
    """The product is whole, and nothing is said of the device."""

    def broken(self):
        raise RuntimeError("nobody expected this")

    made = factories.plan(tmp_path, factories.stack((4, 8, 8)), shards=1)
    assert factories.receipt(factories.computed(made)).telemetry is None  # as of a CPU
    made.results.receipt("00000").unlink()
    monkeypatch.setattr(Gauge, "sample", broken)
    on_a_device(monkeypatch, driver)
    assert factories.receipt(factories.computed(made)).telemetry is None


def test_every_quantity_of_the_receipt_is_explained():
    """docs/telemetry.md names each key, each column and each reason of a throttle."""
    page = (factories.ROOT / "docs" / "telemetry.md").read_text()
    recorder = Recorder(SimpleNamespace(), 0.0)
    named = [*recorder.summarize(), *Sample.__dataclass_fields__, *gauges.THROTTLES.values()]
    assert [name for name in named if f"`{name}`" not in page] == []
