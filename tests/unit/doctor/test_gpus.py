"""The doctor's look at GPUs: pretended machines, real processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from shardwise.devices import leases
from shardwise.devices.leases import Holder
from shardwise.devices.nvml import Device, Process
from shardwise.doctor import gpus
from shardwise.doctor.findings import FAULT, NOTE, OK, Deadline, Finding, Reply, ask_all

GIB = 2**30
RIGHT = json.dumps({"cuda": 12080}) + "\n" + json.dumps({"sum": 256.0**3}) + "\n"


def device(index: int, free: int = 79, **over: Any) -> Device:
    """A device of 80 GiB, of which the driver keeps one."""
    over = {"reserved": GIB, **over}
    return Device(f"GPU-{index}", "NVIDIA H200", index, 80 * GIB, free * GIB, **over)


class Asked:
    """Stands for the programs that multiply on devices; notes which devices were tried."""

    def __init__(self, answers: dict[str, Reply] | None = None) -> None:
        self.answers = answers or {}
        self.uuids: list[str] = []

    def __call__(
        self, lines: Sequence[Sequence[str]], deadline: Deadline, env: dict[str, str]
    ) -> list[Reply]:
        """Reply for each device; where nothing is said of one, its product is right."""
        self.uuids += [line[-1] for line in lines]
        return [self.answers.get(uuid, Reply(0, RIGHT, "")) for uuid in self.uuids]


@pytest.fixture(autouse=True)
def _own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the leases of this machine alone."""
    monkeypatch.setenv("SHARDWISE_LEASES", str(tmp_path / "leases"))


def look(*present: Device, backend: str = "auto", **over: Any) -> list[Finding]:
    """What the doctor finds where driver and cupy are good, and these devices are present."""
    machine = {
        (gpus.choose, "driver_cuda_version"): over.get("cuda", lambda: 12080),
        (gpus.nvml, "driver_and_devices"): over.get("listed", lambda: ("570.1", list(present))),
        (gpus.leases, "holder"): over.get("holder", lambda uuid: None),
        (gpus, "installed"): over.get("cupy", lambda: {"cupy-cuda12x": "14.2.0"}),
        (gpus, "kvikio_version"): over.get("kvikio", lambda: "26.10.0"),
        (gpus.base, "ask_all"): over.get("ask_all", Asked()),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "JOB_ID"):
            patch.delenv(name, raising=False)
        for (place, name), said in machine.items():
            patch.setattr(place, name, said)
        for name, value in over.get("environ", {}).items():
            patch.setenv(name, value)
        return list(gpus.findings(Deadline(100), backend))


def named(found: Sequence[Finding], name: str) -> list[Finding]:
    """The findings of one name."""
    return [finding for finding in found if finding.name == name]


def usable(found: Sequence[Finding]) -> list[str]:
    """The devices that a task could have."""
    return [finding.facts["uuid"] for finding in found if finding.facts.get("usable")]


def codes(found: Sequence[Finding]) -> list[int]:
    """The exit codes of all faults; each fault says what to do."""
    assert all(finding.cure for finding in found if finding.level == FAULT)
    return [finding.code for finding in found if finding.level == FAULT]


def test_two_devices_that_compute() -> None:
    """Each is named with its UUID, memory and mode; nothing is wrong."""
    found = look(device(0), device(1))
    assert usable(found) == ["GPU-0", "GPU-1"]
    assert codes(found) == []
    (first,) = named(found, "GPU 0")
    assert first.text == (
        "NVIDIA H200, 79.0 GiB free of 80.0 GiB, compute mode default, GPU-0: computes"
    )
    (driver,) = named(found, "driver")
    assert (driver.level, driver.text) == (OK, "570.1, runs CUDA up to 12.8")


def test_kvikio_that_is_missing_is_a_fault() -> None:
    """Tasks on a GPU read by it; where it is there, the way of the bytes is told."""
    assert codes(look(device(0), kvikio=lambda: None)) == [2]
    (found,) = named(look(device(0)), "kvikio")
    assert "26.10.0; bytes go between files and devices" in found.text


@pytest.mark.parametrize(
    ("driver", "packages", "level", "words"),
    [
        (12080, {"cupy-cuda12x": "14"}, OK, "fits"),
        (13000, {"cupy-cuda12x": "14"}, OK, "fits"),  # newer drivers run what is older
        (13000, {"cupy-cuda13x": "14"}, OK, "fits"),
        (14000, {"cupy-cuda13x": "14"}, OK, "fits"),
        (12080, {"cupy-cuda13x": "14"}, FAULT, "built for CUDA 13, but the driver runs 12.8"),
        (12080, {}, FAULT, "not installed"),
        (12080, {"cupy-cuda12x": "14", "cupy-cuda13x": "14"}, FAULT, "several"),
        (11080, {"cupy-cuda12x": "14"}, FAULT, "needs a driver for CUDA 12"),
        (12080, {"cupy": "14"}, OK, "fits"),  # built from source, here
        (None, {"cupy-cuda12x": "14"}, NOTE, "it has to fit the driver of the nodes"),
        (None, {}, NOTE, "not installed"),
    ],
)
def test_cupy_and_driver(
    driver: int | None, packages: dict[str, str], level: str, words: str
) -> None:
    """A cupy that does not fit is a fault to mend, and no device is tried with it."""
    asked = Asked()
    found = look(device(0), cuda=lambda: driver, cupy=lambda: packages, ask_all=asked)
    (cupy,) = named(found, "cupy")
    assert (cupy.level, words in cupy.text) == (level, True)
    assert codes(found) == ([2] if level == FAULT else [])
    assert asked.uuids == (["GPU-0"] if level == OK else [])


def test_where_no_gpu_is_wanted_or_there() -> None:
    """No fault without a driver, unless the config wants cupy; under numpy nothing is looked at."""
    without = {"cuda": lambda: None, "cupy": dict}
    assert codes(look(**without)) == []
    assert "computing with NumPy" in named(look(**without), "driver")[0].text
    assert codes(look(backend="cupy", **without)) == [2]
    (found,) = look(device(0), backend="numpy", ask_all=Asked({"GPU-0": Reply(1, "", "broken")}))
    assert (found.name, found.level) == ("backend", NOTE)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (Reply(None, '{"cuda": 12080}\n', ""), 75, "hangs"),
        (Reply(None, "", ""), 75, "hangs"),
        (Reply(1, '{"cuda": 12080}\n', "x\nCUDARuntimeError: lost"), 75, "Error: lost"),
        (Reply(-11, '{"cuda": 12080}\n', ""), 75, "ended by signal 11"),
        (Reply(0, '{"cuda": 12080}\n{"sum": 7.0}\n', ""), 75, "sums to 7.0, not 16777216"),
        (Reply(1, "", "ImportError: libcublas.so.12"), 2, "libcublas.so.12"),
    ],
)
def test_a_device_that_does_not_compute(answer: Reply, code: int, words: str) -> None:
    """It is a fault of its own; the other device stays usable."""
    found = look(device(0), device(1), ask_all=Asked({"GPU-0": answer}))
    assert codes(found) == [code]
    assert words in named(found, "GPU 0")[0].text
    assert usable(found) == ["GPU-1"]


CUPY = """
from types import SimpleNamespace as Name
from numpy import ones
cuda = Name(runtime=Name(runtimeGetVersion=lambda: 12080))
"""


def test_the_program_leases_its_device_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was quicker keeps it; whatever else keeps the lease away is told."""
    (tmp_path / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(leases, "_HELD", {})
    assert leases.take("GPU-0")
    (tmp_path / "leases" / "GPU-2.lease").mkdir()
    found = look(device(0), device(2), device(3), ask_all=ask_all)
    assert usable(found) == ["GPU-3"]
    assert named(found, "GPU 0")[0].text.endswith("no product was tried: it is leased by now")
    assert "no product was tried: device leases cannot be kept" in named(found, "GPU 2")[0].text
    assert [leases.holder(f"GPU-{i}") is None for i in (0, 3)] == [False, True]
    os.close(*leases._HELD.values())


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        ({"free": 2}, "fills it"),
        ({"mode": "prohibited"}, "prohibits"),
        ({"mode": "exclusive process", "processes": (Process(1, GIB),)}, "exclusive process"),
    ],
)
def test_a_busy_device_is_left_alone(busy: dict[str, Any], words: str) -> None:
    """No product is tried where it could be in a task's way; the other device is enough."""
    asked = Asked()
    found = look(device(0, **busy), device(1), ask_all=asked)
    assert asked.uuids == ["GPU-1"]
    assert words in named(found, "GPU 0")[0].text
    assert codes(found) == []
    assert usable(found) == ["GPU-1"]
    assert codes(look(device(0, **busy))) == [75]


def test_a_leased_device_names_its_task() -> None:
    """Who, since when and what for; where all are leased, a task has to wait."""
    task = Holder(4242, "ada", time.time(), "multiply --shard 00007")

    def holder(uuid: str) -> Holder | None:
        return task if uuid == "GPU-0" else None

    asked = Asked()
    found = look(device(0), device(1), holder=holder, ask_all=asked)
    assert asked.uuids == usable(found) == ["GPU-1"]
    assert codes(found) == []
    left, lease = named(found, "GPU 0")
    assert left.text.endswith("no product was tried: it is leased")
    assert lease.text.startswith("leased to process 4242 of ada since 20")
    assert lease.text.endswith(" (multiply --shard 00007)")
    alone = look(device(0), holder=holder)
    assert codes(alone) == [75]
    assert "changed hands for 60 minutes" in named(alone, "leases")[0].text
    job = {"JOB_ID": "7", "SGE_ROOT": "/opt/ge"}
    in_a_job = named(look(device(0), holder=holder, environ=job), "leases")
    assert "changed hands for 5 minutes" in in_a_job[0].text


@pytest.mark.parametrize(
    ("job", "can_be_used"), [(None, ["GPU-1"]), ("slurm 8", ["GPU-1"]), ("slurm 7", [])]
)
def test_what_slurm_granted_to_this_job(job: str | None, can_be_used: list[str]) -> None:
    """A single device is tried whoever leases it but for this job itself; others are not."""
    asked = Asked()
    found = look(
        device(0), device(1), ask_all=asked, holder=lambda uuid: Holder(1, "a", 0.0, "b", job),
        environ={"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "1"},
    )  # fmt: skip
    assert asked.uuids == usable(found) == can_be_used
    assert codes(found) == ([] if can_be_used else [75])


def test_what_is_granted_is_not_waited_for() -> None:
    """A full device is tried all the same; a lost device is a fault."""
    granted = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0"}
    found = look(device(0, free=2), environ=granted)
    assert (codes(found), usable(found)) == ([], ["GPU-0"])
    lost = Asked({"GPU-0": Reply(1, '{"cuda": 12080}\n', "lost")})
    assert codes(look(device(0), environ=granted, ask_all=lost)) == [75]


@pytest.mark.parametrize("value", ["", "7", "GPU-none", "0,0"])
def test_a_variable_that_names_no_device(value: str) -> None:
    """A task would end with 75, and so says the doctor; the devices are shown all the same."""
    found = look(device(0), environ={"CUDA_VISIBLE_DEVICES": value})
    assert codes(found) == [75]
    assert "CUDA_VISIBLE_DEVICES" in named(found, "granted")[0].text
    assert named(found, "GPU 0")


def test_what_is_logged_while_devices_are_listed_is_told() -> None:
    """A device that does not answer is left out with a warning."""

    def listed() -> tuple[str, list[Device]]:
        gpus.logging.getLogger("shardwise.devices.nvml").warning("GPU %d does not answer", 1)
        return "570.1", [device(0)]

    found = look(listed=listed)
    assert [f.text for f in named(found, "devices")] == ["GPU 1 does not answer"]
    assert usable(found) == ["GPU-0"]


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended, and that its parent, which is this one, has not collected."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    while not (found := gpus.describe(process.pid)) or not found["zombie"]:
        time.sleep(0.01)
    yield process.pid
    process.wait()


def test_the_holders_of_a_device(zombie: int) -> None:
    """A visible process, one of another container, and a zombie, each with its memory."""
    processes = (Process(os.getpid(), 2 * GIB), Process(2**22 + 1, 3 * GIB), Process(zombie, GIB))
    found = look(device(0, free=74, processes=processes))
    visible, hidden, dead = named(found, "GPU 0")[1:]
    assert f"held by process {os.getpid()} of {leases.user_name(os.getuid())}" in visible.text
    assert ", 2.0 GiB (" in visible.text
    assert "pytest" in visible.text or os.path.basename(sys.executable) in visible.text
    assert "process 4194305, 3.0 GiB: not visible here" in hidden.text
    assert dead.text.startswith(f"held by a zombie: process {zombie} of ")
    assert f"process {os.getpid()}" in dead.cure
    assert dead.facts["zombie"]


@pytest.mark.parametrize(
    ("free", "reserved", "memory", "unlisted"),
    [
        (70, None, 4 * GIB, None),  # as where GPU and CPU share one memory
        (70, 0, 10 * GIB, None),
        (70, 0, 4 * GIB, 6 * GIB),
        (70, 5 * GIB, 4 * GIB, GIB),
        (70, 6 * GIB, 4 * GIB, None),
        (70, 0, None, None),  # it does not tell its memory, so nothing is known of the rest
    ],
)
def test_memory_that_no_process_has(
    free: int, reserved: int | None, memory: int | None, unlisted: int | None
) -> None:
    """It is used memory without what is listed and what the driver keeps."""
    processes = (Process(os.getpid(), memory),)
    found = look(device(0, free=free, processes=processes, reserved=reserved))
    told = [finding for finding in found if "unlisted" in finding.facts]
    assert [finding.facts["unlisted"] for finding in told] == ([unlisted] if unlisted else [])
    assert all("by no process that is listed" in finding.text for finding in told)
