"""Ceilings: what is measured and kept, what is read of files that anybody may have written."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shardwise import ceilings, devices, multiply, probes, sizes
from shardwise.ceilings import Ceilings
from shardwise.errors import DeviceFailed
from shardwise.lanes import HostLane
from shardwise.observation import Device
from shardwise.paths import Results

from tests import factories

CPU = {"name": "CPU"}
GOOD = {
    "schema": 1, "node": "n1", "device": {"name": "NVIDIA H200", "uuid": "GPU-1"},
    "measured": 1.8e9, "rates": {"read": 3.9e9, "write": 3e9, "upload": 5e10, "download": None,
                                 "compute": {"float32": 5e13}},
}  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """An empty results folder."""
    (tmp_path / "results").mkdir()
    return Results(tmp_path / "results")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short probes."""
    monkeypatch.setattr(probes, "FILE_BYTES", 4 * sizes.SLAB_BYTES)
    monkeypatch.setattr(probes, "DISK_SECONDS", 0.3)
    monkeypatch.setattr(probes, "_PRODUCT_SECONDS", 0.002)
    monkeypatch.setattr(probes, "HOST_DIM", 256)


def kept(results: Results, name: str, told: Any) -> None:
    """A file among the ceilings, whatever it holds."""
    results.ceilings.mkdir(parents=True, exist_ok=True)
    raw = told if isinstance(told, bytes) else json.dumps(told).encode()
    (results.ceilings / f"{name}.json").write_bytes(raw)


def test_a_node_is_measured(results: Results) -> None:
    """A CPU has rates of its disk, its page cache and its products, and none of PCIe."""
    made = probes.measure(results, HostLane(), CPU, None)
    assert all(made.rates[what] > 1e6 for what in ("read", "write", "copy"))
    assert made.rates["upload"] is made.rates["download"] is None
    assert made.compute.keys() == {"float32", "float64"}
    assert min(made.compute.values()) > 1e6
    assert (made.node, made.alone) == (devices.node(), True)


@pytest.mark.parametrize("dtype", ["float16", "complex64", "int8", "uint64"])
def test_the_products_of_the_plan_are_timed(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Each element type of a stack has its rate, integers without BLAS too."""
    monkeypatch.setattr(probes, "HOST_DIM", 32)
    monkeypatch.setattr(probes, "LEAST_DIM", 16)
    plan = factories.plan(tmp_path, factories.stack((4, 3, 3), dtype))
    monkeypatch.setattr(probes, "_disk", lambda *_: {})
    made = probes.measure(results, HostLane(), CPU, plan)
    assert made.compute.keys() == {dtype}
    assert made.rate("compute", plan) == made.compute[dtype] > 0
    assert made.rate("read") is None


def test_what_was_written_is_read(results: Results) -> None:
    """The file says the same again."""
    made = probes.measure(results, HostLane(), CPU, None, alone=False)
    path = ceilings.write(results, made)
    assert ceilings.read(results) == {made.node: made}
    assert factories.leftovers(results.root) == []
    assert [path] == list(results.ceilings.iterdir())


def test_slabs_are_given_back(results: Results) -> None:
    """A session uses the memory of the probes again: none is taken beside it."""
    lane = HostLane()
    probes.measure(results, lane, CPU, None)
    assert len(lane._kept) == probes.SLABS


def test_a_disk_with_no_room(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full is left alone, and the figures say so; products are measured."""
    room = SimpleNamespace(f_bavail=1000, f_frsize=4096)
    monkeypatch.setattr(probes.os, "statvfs", lambda _: room)
    made = probes.measure(results, HostLane(), CPU, None)
    assert made.rates["read"] is None
    assert "3.9 MiB of it are free" in made.remarks[0]
    assert made.compute


def test_a_disk_that_fails(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk is a remark; what else there is to measure is measured."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(probes, "allocate", full)
    made = probes.measure(results, HostLane(), CPU, None)
    assert "No space left" in made.remarks[0]
    assert made.compute


def test_a_disk_without_direct_io(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured all the same, flushed slab by slab, and the figures say what they are of."""
    flushed = []
    real = os.fdatasync
    monkeypatch.setattr(probes, "open_direct", lambda *_: None)
    monkeypatch.setattr(probes.os, "fdatasync", lambda fd: (flushed.append(fd), real(fd)))
    made = probes.measure(results, HostLane(), CPU, None)
    assert made.rates["write"] > 0
    assert len(flushed) >= 1
    assert "page cache" in made.remarks[0]


class Track:
    """A lane of a pretended GPU, whose copies take no time and whose marks end in order."""

    def __init__(self) -> None:
        self.copies: list[str] = []

    def zeros(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """A batch."""
        return np.zeros(shape, dtype)

    def upload(self, views: list[np.ndarray], target: np.ndarray) -> Any:
        """A copy up."""
        assert views[0].nbytes == target.nbytes
        return self._mark("up")

    def download(self, source: np.ndarray, target: np.ndarray) -> Any:
        """A copy down."""
        assert source.nbytes == target.nbytes
        return self._mark("down")

    def _mark(self, way: str) -> Any:
        self.copies.append(way)
        return SimpleNamespace(wait=lambda: time.sleep(0.001))


def test_pcie_is_measured_one_way_at_a_time() -> None:
    """Copies up, then copies down, each waited for by its last mark."""
    lane = Track()
    slab = np.zeros(sizes.MIB, np.uint8)
    rates = probes._pcie(lane, slab)
    half = len(lane.copies) // 2
    assert lane.copies == ["up"] * half + ["down"] * half
    assert all(0 < rate <= probes._COPIES * slab.nbytes / 0.001 for rate in rates.values())


def test_tf32_is_a_rate_of_its_own() -> None:
    """What a plan in tf32 reaches is shown beside the rate of tf32; a CPU has none."""
    plan = SimpleNamespace(
        problem=SimpleNamespace(result=None), dtype="float32", settings={"precision": "tf32"}
    )
    rates = {"float32": 1.0, "float32 tf32": 7.0}
    gpu = Ceilings("n1", Device("NVIDIA H200", "GPU-1", "n1"), 1.0, {}, rates)
    assert gpu.rate("compute", plan) == 7.0
    assert replace(gpu, device=Device("CPU", None, "n1")).rate("compute", plan) == 1.0
    plan.problem.result = (3, 3)  # of a function, whose operations nobody knows
    assert gpu.rate("compute", plan) is None


# Files.


def test_files_of_several_nodes(results: Results) -> None:
    """Each node has its own; a key that is missing is None."""
    kept(results, "n1", GOOD)
    kept(results, "n2", GOOD | {"node": "n2", "device": {"name": "CPU"}})
    found = ceilings.read(results)
    assert found.keys() == {"n1", "n2"}
    assert found["n1"].rate("read") == 3.9e9
    assert found["n1"].rate("download") is None
    assert found["n2"].device == Device("CPU", None, "n2")


@pytest.mark.parametrize(
    "told",
    [
        b"", b"{", b"[" * 60_000, b"\xff\xfe", b" " * 70_000 + b"{}", [], 3, None,
        GOOD | {"schema": 2}, GOOD | {"node": "a\x1b[2J"}, GOOD | {"node": ["n"]},
        GOOD | {"node": "x" * 5000}, GOOD | {"device": "H200"}, GOOD | {"rates": None},
        GOOD | {"measured": "now"}, GOOD | {"measured": float("nan")}, GOOD | {"device": {}},
    ],
)  # fmt: skip
def test_a_file_that_is_none_of_ours(results: Results, told: Any) -> None:
    """Anything that cannot be ceilings is left out, and the others are read."""
    kept(results, "bad", told)
    kept(results, "n1", GOOD)
    assert ceilings.read(results).keys() == {"n1"}


@pytest.mark.parametrize("rate", [-1.0, 0, True, "9", 1e300, float("inf"), 10**400, [], None])
def test_a_rate_that_cannot_be(results: Results, rate: Any) -> None:
    """It is no rate; what else the file says counts."""
    rates = {"read": rate, "write": 3e9, "compute": {"float32": rate, "float64": 1e12}}
    kept(results, "n1", GOOD | {"rates": rates})
    found = ceilings.read(results)["n1"]
    assert (found.rate("read"), found.rate("write")) == (None, 3e9)
    assert found.compute == {"float64": 1e12}


def test_pipes_links_and_folders_are_no_files(results: Results, tmp_path: Path) -> None:
    """Nothing is waited for, and nothing outside of the folder is read."""
    kept(results, "n1", GOOD)
    os.mkfifo(results.ceilings / "pipe.json")
    (results.ceilings / "folder.json").mkdir()
    (tmp_path / "outside.json").write_text(json.dumps(GOOD | {"node": "n9"}))
    (results.ceilings / "link.json").symlink_to(tmp_path / "outside.json")
    assert ceilings.read(results).keys() == {"n1"}


def test_no_folder_has_no_ceilings(results: Results) -> None:
    """A run that measured nothing has none."""
    assert ceilings.read(results) == {}


def test_names_of_nodes_stay_in_their_folder(results: Results) -> None:
    """A node may be called anything."""
    for node in ("../../etc/passwd", "/", "..", "a b;c"):
        assert results.ceiling(node).resolve().parent == results.ceilings.resolve()


# Before the first shard of a large run.


@pytest.fixture
def due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plan that is large enough, and what is measured for it."""
    plan = factories.plan(tmp_path, factories.stack((4, 3, 3)))
    monkeypatch.setattr(ceilings, "DUE_BYTES", plan.problem.matrices * plan.problem.matrix_bytes)
    made: list[Ceilings] = []

    def measure(results: Results, lane: Any, device: Any, plan: Any, alone: bool) -> Ceilings:
        who = Device(device["name"], None, devices.node())
        made.append(Ceilings(who.node, who, 1.0, dict.fromkeys(ceilings.RATES), {}, alone))
        return made[-1]

    monkeypatch.setattr(probes, "measure", measure)
    return SimpleNamespace(plan=plan, made=made, folder=plan.results.ceilings)


def test_the_first_task_of_a_large_run_measures(due: Any) -> None:
    """It does so once a node, and says that it was not alone."""
    for _ in range(3):
        ceilings.measure_if_due(due.plan, HostLane(), CPU)
    assert [made.alone for made in due.made] == [False]
    assert [path.suffix for path in due.folder.iterdir()] == [".json"]
    assert ceilings.read(due.plan.results).keys() == {devices.node()}


def test_a_small_run_is_not_measured(due: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds would be much of it."""
    monkeypatch.setattr(ceilings, "DUE_BYTES", ceilings.DUE_BYTES + 1)
    ceilings.measure_if_due(due.plan, HostLane(), CPU)
    assert due.made == []
    assert not due.folder.exists()


def test_only_one_task_of_a_node_measures(due: Any) -> None:
    """While another task is at it, this one goes on; after an hour that one has died."""
    due.folder.mkdir(parents=True)
    marker = due.plan.results.ceiling(devices.node()).with_suffix(".measuring")
    marker.touch()
    ceilings.measure_if_due(due.plan, HostLane(), CPU)
    assert due.made == []
    os.utime(marker, (1.0, 1.0))
    ceilings.measure_if_due(due.plan, HostLane(), CPU)
    assert len(due.made) == 1
    assert not marker.exists()


def test_a_measurement_that_fails_costs_no_shard(
    due: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a warning, and the next task does not try it again."""
    tried = []

    def fails(*words: Any, **named: Any) -> None:
        tried.append(words)
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(probes, "measure", fails)
    with caplog.at_level(logging.WARNING):
        ceilings.measure_if_due(due.plan, HostLane(), CPU)
        ceilings.measure_if_due(due.plan, HostLane(), CPU)
    assert len(tried) == 1
    assert "the device is lost" in caplog.text


def test_a_task_that_is_ended_leaves_no_marker(due: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGTERM the next task measures."""

    def ended(*words: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probes, "measure", ended)
    with pytest.raises(KeyboardInterrupt):
        ceilings.measure_if_due(due.plan, HostLane(), CPU)
    assert list(due.folder.iterdir()) == []


# The command.

LONG = """
import sys, threading
from shardwise import cli, probes, sizes
probes.DISK_SECONDS = 600.0
real = probes.ExtentWriter.start
def start(self, offset, view):
    sys.stderr.write("writing\\n"); sys.stderr.flush()
    return real(self, 0, view)
probes.ExtentWriter.start = start
probes.FILE_BYTES = 10**15
probes.allocate = lambda *_: None
probes.FREE_SHARE = 1e6
sys.argv = ["ceilings.py", *sys.argv[1:]]
import runpy
runpy.run_path(f"{sys.argv.pop(1)}/ceilings.py", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_command_that_is_ended(results: Results, number: int) -> None:
    """The temporary file has no name, so that no end can leave it."""
    line = [sys.executable, "-c", LONG, str(factories.SCRIPTS), str(results.root), "--backend",
            "numpy"]  # fmt: skip
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as job:
        for text in job.stderr:
            if text == "writing\n":
                break
        assert [path for path in results.root.rglob("*") if path.is_file()] == []
        job.send_signal(number)
        job.stderr.read()
        code = job.wait(60)
    assert code == (143 if number == signal.SIGTERM else -9)
    assert [path for path in results.root.rglob("*") if path.is_file()] == []


def test_the_command_prints_a_table(results: Results, tmp_path: Path) -> None:
    """Each rate has a line, and the file is there afterwards; without a folder it says so."""
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys, runpy; from shardwise import probes, sizes; "
         "probes.FILE_BYTES = 4 * sizes.SLAB_BYTES; probes._PRODUCT_SECONDS = .002; "
         "sys.argv[0] = sys.argv.pop(1); runpy.run_path(sys.argv[0], run_name='__main__')",
         str(factories.SCRIPTS / "ceilings.py"), str(results.root), "--backend", "numpy"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in words[1:]] == [*ceilings.RATES, "float32", "float64"]
    assert words[1][2] in ("MB/s", "GB/s")
    assert len(ceilings.read(results)) == 1
    refused = factories.run("ceilings", tmp_path / "none")
    assert refused.returncode == 2
    assert "there is no such folder" in refused.stderr


def test_a_device_that_fails_is_named(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as by a task, without a traceback: another device, or another hour, may do."""
    import runpy

    def lost(*words: Any) -> None:
        raise ZeroDivisionError("an illegal address")

    monkeypatch.setattr(probes, "measure", lost)
    monkeypatch.setattr(devices, "device_errors", lambda xp: (ZeroDivisionError,))
    monkeypatch.setattr(multiply, "load_backend", lambda *_, **__: (np, {"uuid": "GPU-1"}))
    script = runpy.run_path(str(factories.SCRIPTS / "ceilings.py"))
    options = script["arguments"]().parse_args([str(results.root), "--backend", "numpy"])
    with pytest.raises(DeviceFailed, match="GPU-1: an illegal address"):
        script["main"](options)
    assert ceilings.read(results) == {}


def test_a_rate_has_three_digits_at_most() -> None:
    """For people."""
    import runpy

    table = runpy.run_path(str(factories.SCRIPTS / "ceilings.py"))["table"]
    rates = dict.fromkeys(ceilings.RATES) | {"read": 3.9e9, "write": 47e6}
    made = Ceilings("n1", Device("CPU", None, "n1"), 1.0, rates, {"float32": 51.23e12})
    text = table(made)
    assert "3.9 GB/s" in text
    assert "47 MB/s" in text
    assert "51.2 TFLOP/s" in text
