"""Which device a task gets: what schedulers grant, what is free, how it waits; which cupy fits."""

import os
import sys
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock, patch

import numpy as np
import psutil
import pynvml
import pytest
from shardwise.devices import choose, nvml
from shardwise.devices.nvml import Device
from shardwise.errors import InputError, TryAgain
from shardwise.multiply import backend

pytestmark = pytest.mark.usefixtures("folder")

GIB = 2**30
A, B, C = (f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")
MIG = "MIG-dddddddd-0000-4000-8000-00000000000"
NODE = [Device(uuid, "Fake", i, 16 * GIB, 15 * GIB) for i, uuid in enumerate((A, B, C))]
CUT = [Device(f"{MIG}{i}", "Fake", 3, 8 * GIB, 7 * GIB) for i in range(2)]
SLURM = {"SLURM_JOB_ID": "7"}
MEMORY = SimpleNamespace(total=16 * GIB, free=15 * GIB)
GRID_ENGINE = {"JOB_ID": "7", "SGE_ROOT": "/opt/ge"}


def take(environ, node=NODE, needed=GIB, **given):
    """Take a device of a node; also the environment that the task is left with."""
    environ = dict(environ)
    with patch.object(choose, "present", lambda: node):
        return choose.take(needed, environ=environ, **given), environ


@pytest.mark.parametrize(("environ", "uuid"), [
    ({}, A), (GRID_ENGINE, A), (GRID_ENGINE | {"SGE_HGR_license": "1"}, A),
    ({"CUDA_VISIBLE_DEVICES": "1"}, B), ({"CUDA_VISIBLE_DEVICES": "2,1"}, B),
    ({"CUDA_VISIBLE_DEVICES": "3"}, f"{MIG}0"),  # any instance of that GPU
    ({"CUDA_VISIBLE_DEVICES": f"{MIG}1,{MIG}0"}, f"{MIG}0"),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "1"}, B),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "2", "SGE_HGR_gpu": "1"}, C),
    (GRID_ENGINE | {"CUDA_VISIBLE_DEVICES": "2"}, C),
    (GRID_ENGINE | {"SGE_HGR_gpu": "1", "CUDA_VISIBLE_DEVICES": "0"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu": "2 1 2"}, B), (GRID_ENGINE | {"SGE_SGR_cuda_id": "cuda1"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu_card": "/dev/nvidia1"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu": B}, B), (GRID_ENGINE | {"SGE_GPU": "1"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu": "0 1", "SGE_HGR_TASK_gpu": "1"}, B),
])  # fmt: skip
def test_the_device_is_the_one_that_is_meant(environ, uuid):
    """Every form of every variable: CUDA sees this device, by its UUID; it is leased, and stays."""
    taken, left = take(environ, [*NODE, *CUT])
    assert taken.uuid == left["CUDA_VISIBLE_DEVICES"] == uuid
    assert choose.lease(uuid, look=True).startswith(f"process {os.getpid()} of ")
    assert take({"CUDA_VISIBLE_DEVICES": "2"})[0] is taken  # CUDA reads the variable once


@pytest.mark.parametrize(
    "value", ["", "NoDevFiles", "3", "0,-1", "GPU-", "MIG-GPU-1/0/0", "1" * 5000, "gpu-1"]
)
@pytest.mark.parametrize(("job", "name"), [
    ({}, "CUDA_VISIBLE_DEVICES"), (SLURM, "CUDA_VISIBLE_DEVICES"), (GRID_ENGINE, "SGE_HGR_gpu"),
])  # fmt: skip
def test_a_variable_that_cannot_be_meant_is_explained(job, name, value):
    """Try again later: the message has the value, the devices here and a cure."""
    with pytest.raises(TryAgain) as refusal:
        take(job | {name: value})
    said = f"{name}={value!r} does not name devices of this node, which are: 0 ({A}), 1 ({B}), 2"
    assert said in str(refusal.value)
    with pytest.raises(TryAgain, match="CUDA_VISIBLE_DEVICES='' does not name devices"):
        take(SLURM)  # it sets no variable if it has granted no GPU


@pytest.mark.parametrize(("prefer", "held", "barred", "taken"), [
    (None, (), (), B),  # the freest, by the share of its memory
    (None, (B,), (), A), (None, (), (B,), A), (9, (), (), A), (2, (C,), (), A), (0, (), (A,), B),
])  # fmt: skip
@pytest.mark.parametrize("environ", [{}, SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2"}])
def test_which_of_several_devices_is_taken(other, environ, prefer, held, barred, taken):
    """The freest, or the worker's own, else the next; none that failed in this run."""
    node = [
        Device(A, "Large", 0, 80 * GIB, 60 * GIB),
        Device(B, "Small", 1, 16 * GIB, 15 * GIB),
        Device(C, "Small", 2, 16 * GIB, 8 * GIB),
    ]
    other.update({uuid: holder(5) for uuid in held})
    failed = dict.fromkeys(barred, "bad")
    assert take(environ, node, prefer=prefer, barred=lambda: failed)[0].uuid == taken


class Clock:
    """A clock that ``sleep`` moves on, and events with their times."""

    now = 0.0

    def __init__(self, events):
        self.events, self.monotonic = events, lambda: self.now

    def sleep(self, seconds):
        """Move the clock on and run the events that are due."""
        assert seconds >= 0
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()


@pytest.fixture
def other(monkeypatch):
    """Another process, which holds leases as the test says: a mapping of UUIDs to holders."""
    held: dict = {}
    monkeypatch.setattr(choose, "lease", lambda uuid, look: held.get(uuid))
    return held


def holder(pid):
    """A process that leases a device."""
    return f"process {pid} of ana since 19:33"


def waiting(monkeypatch, events, node=NODE[:1], environ=None, **given):
    """Take a device while events happen: pairs of a time in seconds and a function to call then."""
    monkeypatch.setattr(choose, "time", clock := Clock(events))
    try:
        return take(environ or {}, node, **given)[0].uuid, clock.now
    except TryAgain as error:
        return str(error), clock.now


GRANTED = SLURM | {"CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(("environ", "pids", "seconds"), [
    ({}, {150: None}, 150), (GRANTED, {150: None}, 150),
    # The limit counts from the last time that the lease changed hands.
    (GRANTED, {**{200 * i: i for i in range(1, 8)}, 1500: None}, 1500),
    # In a cluster's job, whose run time is limited, the wait ends before the job does.
    ({}, {}, 3600), (GRANTED, {}, 300), (GRID_ENGINE, {}, 300), ({"JOB_ID": "7"}, {}, 3600),
])  # fmt: skip
def test_a_task_waits_its_turn_with_a_message(monkeypatch, other, caplog, environ, pids, seconds):
    """At once, and again each minute: which device, and who holds it since when."""
    other[A] = holder(5)
    then = [(at, partial(other.update, {A: holder(pid)}) if pid else other.clear)
            for at, pid in pids.items()]  # fmt: skip
    found, waited = waiting(monkeypatch, then, environ=environ)
    assert waited == pytest.approx(seconds, abs=5)
    said = f"{A} (Fake): leased to process 5 of ana since 19:33"
    assert caplog.messages[:3] == [f"waiting for a free device: {said}"] * 3
    limit = f"no device became free, and no lease changed hands for {seconds} s: {said}; end what"
    assert found.startswith(A if pids else limit)


@pytest.mark.parametrize(("free", "needed", "enough"), [(1, 2, 2), (7, 100, 8)])
def test_a_device_that_others_fill_is_waited_for(monkeypatch, other, free, needed, enough):
    """Until there is room for the plan, or half of the device is free; leases count meanwhile."""
    node = [Device(A, "Fake", 0, 16 * GIB, free * GIB)]
    said, waited = waiting(monkeypatch, [], node, needed=needed * GIB)
    assert waited == 3600
    assert f"other processes fill it: {enough}.0 GiB should be free; " in said
    emptied = partial(node.__setitem__, 0, Device(A, "Fake", 0, 16 * GIB, enough * GIB))
    events = [(3000, partial(other.update, {A: holder(5)})), (6000, other.clear), (9000, emptied)]
    assert waiting(monkeypatch, events, node, needed=needed * GIB) == (A, 9000)


def drive(monkeypatch, gpus):
    """Replace the functions of pynvml; a GPU is a dict of what is known of it, or its error."""

    def known(gpu, key, error=pynvml.NVML_ERROR_NOT_SUPPORTED):
        if isinstance(gpu, int) or gpu.get(key) is None:
            raise pynvml.NVMLError(gpu if isinstance(gpu, int) else error)
        return gpu[key]

    functions = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "DeviceGetCount": lambda: len(gpus),
        "DeviceGetHandleByIndex": lambda number: known(gpus[number], "uuid") and gpus[number],
        "DeviceGetUUID": lambda gpu: gpu["uuid"],
        "DeviceGetName": lambda gpu: "Fake",
        "DeviceGetMemoryInfo": lambda gpu: known({"memory": MEMORY} | gpu, "memory"),
        "DeviceGetMaxMigDeviceCount": lambda gpu: 7 + 0 * len(known(gpu, "instances")),
        "DeviceGetMigDeviceHandleByIndex": lambda gpu, number: {
            "uuid": known(gpu["instances"], number, pynvml.NVML_ERROR_NOT_FOUND)
        },
    }
    for name, function in functions.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", function)


def test_nvml_lists_what_may_compute(monkeypatch, caplog):
    """Instances replace their GPU; a lost GPU is logged; one without permission has no number.

    If NVML refuses to tell the memory, GPU and CPU share the machine's.
    """
    nvml._warn_once.cache_clear()
    drive(monkeypatch, [
        pynvml.NVML_ERROR_NO_PERMISSION,
        {"uuid": A},
        {"uuid": "GPU-cut", "instances": {0: f"{MIG}0", 5: f"{MIG}1"}},
        {"uuid": "GPU-empty", "instances": {}},
        pynvml.NVML_ERROR_GPU_IS_LOST,
        {"uuid": C, "memory": None},
    ])  # fmt: skip
    own, here = (16 * GIB, 15 * GIB), psutil.virtual_memory().total
    for _ in range(2):
        assert nvml.present() == [
            Device(A, "Fake", 0, *own), Device(f"{MIG}0", "Fake", 1, *own),
            Device(f"{MIG}1", "Fake", 1, *own), Device(C, "Fake", 4, here, here),
        ]  # fmt: skip
    assert caplog.messages == [
        "GPU 3 does not answer (GPU is lost) and is left out; it may need a reset"
    ]


def test_errors_of_the_driver_come_with_a_cure(monkeypatch):
    """Try again later: the message has NVML's words and what to do."""
    error = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=error))
    with pytest.raises(TryAgain, match=r"NVML Shared Library Not Found; .*=compute,utility"):
        nvml.present()


def test_a_driver_without_cupy_is_refused_before_any_wait(monkeypatch):
    """A user who has to install cupy must not wait for a device first."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: 13000)
    monkeypatch.setattr(choose, "take", lambda *_: pytest.fail("took a device"))
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    for asked in ("auto", "cupy"):
        with pytest.raises(InputError, match=r"pip install .*cuda13.*, or set backend: numpy"):
            backend.load_backend(asked)
    assert backend.load_backend("numpy")[0] is np


def test_the_device_that_was_taken(monkeypatch, folder):
    """The receipt names it; variables that change cuBLAS's results go, the one of its log stays."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: 13000)
    monkeypatch.setattr(choose, "present", lambda: NODE)
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", Mock())
    names = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_LOG_LEVEL")
    given = dict.fromkeys(names, "1") | {"SHARDWISE_LEASES": str(folder)}
    with patch.dict(os.environ, given, clear=True):
        facts = {"name": "Fake", "uuid": A, "memory": 16 * GIB}
        assert backend.load_backend("auto", GIB, 0.1)[1] == facts
        assert os.environ[choose.VISIBLE] == A
        assert [name for name in names if name in os.environ] == ["CUBLASLT_LOG_LEVEL"]


@pytest.mark.parametrize(("driver", "client", "extra"), [
    (12040, None, "12"), (13000, None, "13"), (11080, None, "none"), (None, None, "none"),
    (14010, None, "13"),  # newer drivers run what is built for older ones
    (None, "/usr/bin/sbatch", "12"),
])  # fmt: skip
def test_cupy_follows_the_driver_or_the_schedulers_client(monkeypatch, driver, client, extra):
    """The driver's own CUDA version; on a login node the older one; elsewhere none."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(choose.shutil, "which", lambda name: client)
    assert choose.cuda_extra() == extra


@pytest.mark.parametrize(("environ", "limit", "at", "end"), [
    (SLURM, None, 0, 60), (SLURM, 5, 0, 5), (SLURM, 1000, 0, 60), ({}, 1000, 0, 0),
    ({}, 1000, 30, 30),  # it fails while it is waited for
])  # fmt: skip
def test_where_all_have_failed_the_task_says_so(monkeypatch, other, environ, limit, at, end):
    """Try again later, after a job has kept the device for a while: how it has failed."""
    other[A], failed, bad = holder(5), {}, {A: "bad"}
    environ = environ | {"CUDA_VISIBLE_DEVICES": "0"}
    given = {"limit": limit, "barred": lambda: failed if at else bad, "environ": environ}
    said, waited = waiting(monkeypatch, [(at, lambda: failed.update(bad))], **given)
    assert "no device is left (" in said
    assert waited == end


@pytest.mark.parametrize(("backend", "driver", "barred", "count"), [
    ("auto", 12000, (), 3), ("cupy", 12000, (), 3), ("numpy", 12000, (), 1), ("auto", None, (), 1),
    ("auto", 12000, {A: "bad"}, 2), ("auto", 12000, ["other"], 3), ("auto", 12000, [A, B, C], 1),
])  # fmt: skip
def test_a_worker_for_each_device(monkeypatch, backend, driver, barred, count):
    """One on NumPy, one without a driver, and one if no device is left: it will say so."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(choose, "present", lambda: NODE)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert choose.workers(backend, barred) == count
