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
from shardwise.devices import choose, grants, leases, nvml
from shardwise.devices.nvml import Device
from shardwise.errors import InputError, TryAgain
from shardwise.multiply import backend as backends

pytestmark = pytest.mark.usefixtures("folder")

GIB = 2**30
A, B, C = (f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")
MIG = "MIG-dddddddd-0000-4000-8000-00000000000"
NODE = [Device(uuid, "Fake", i, 16 * GIB, 15 * GIB) for i, uuid in enumerate((A, B, C))]
CUT = [Device(f"{MIG}{i}", "Fake", 3, 8 * GIB, 7 * GIB) for i in range(2)]
SLURM = {"SLURM_JOB_ID": "7"}
MEMORY = SimpleNamespace(total=16 * GIB, free=15 * GIB)
GRID_ENGINE = {"JOB_ID": "7", "SGE_ROOT": "/opt/ge"}


def take(environ, node=NODE, **given):
    """Take a device of a node; also the environment that the task is left with."""
    environ = dict(environ)
    taken = choose.take(given.pop("needed", GIB), listed=lambda: node, environ=environ, **given)
    return taken, environ


@pytest.mark.parametrize(("environ", "uuid"), [
    ({}, A),
    ({"CUDA_VISIBLE_DEVICES": "1"}, B),
    ({"CUDA_VISIBLE_DEVICES": "2,1"}, B),
    ({"CUDA_VISIBLE_DEVICES": "3"}, f"{MIG}0"),  # any instance of that GPU
    ({"CUDA_VISIBLE_DEVICES": f"{MIG}1,{MIG}0"}, f"{MIG}0"),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "1"}, B),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "2", "SGE_HGR_gpu": "1"}, C),
    (GRID_ENGINE, A),
    (GRID_ENGINE | {"CUDA_VISIBLE_DEVICES": "2"}, C),
    (GRID_ENGINE | {"SGE_HGR_gpu": "1", "CUDA_VISIBLE_DEVICES": "0"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu": "2 1 2"}, B),
    (GRID_ENGINE | {"SGE_SGR_cuda_id": "cuda1"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu_card": "/dev/nvidia1"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu": B}, B),
    (GRID_ENGINE | {"SGE_GPU": "1"}, B),
    (GRID_ENGINE | {"SGE_HGR_gpu": "0 1", "SGE_HGR_TASK_gpu": "1"}, B),
    (GRID_ENGINE | {"SGE_HGR_license": "1"}, A),
    ({"SGE_HGR_gpu": "1", "JOB_ID": "7"}, A),
])  # fmt: skip
def test_the_device_is_the_one_that_is_meant(environ, uuid):
    """Every form of every variable: CUDA sees this one device, by its UUID, and it is leased."""
    taken, left = take(environ, [*NODE, *CUT])
    assert taken.uuid == uuid
    assert left["CUDA_VISIBLE_DEVICES"] == uuid
    assert left["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert leases.holder(uuid).startswith(f"process {os.getpid()} of ")


@pytest.mark.parametrize(
    "value", ["", "NoDevFiles", "3", "0,-1", "GPU-", "MIG-GPU-1/0/0", "1" * 5000, "gpu-1"]
)
@pytest.mark.parametrize(("job", "name"), [
    ({}, "CUDA_VISIBLE_DEVICES"), (SLURM, "CUDA_VISIBLE_DEVICES"), (GRID_ENGINE, "SGE_HGR_gpu"),
])  # fmt: skip
def test_a_variable_that_cannot_be_meant_is_explained(job, name, value):
    """Try again later: the message has the value, the devices here and a cure; no lease stays."""
    with pytest.raises(TryAgain) as refusal:
        take(job | {name: value})
    said = f"{name}={value!r} does not name devices of this node, which are: 0 ({A}), 1 ({B}), 2"
    assert said in str(refusal.value)
    assert not any(leases.holder(device.uuid) for device in NODE)


def test_a_process_keeps_its_device():
    """CUDA reads the variable once: a second call gives the same, whatever is free by then."""
    assert take({})[0] is take({"CUDA_VISIBLE_DEVICES": "2"})[0]


@pytest.mark.parametrize(("prefer", "held", "barred", "taken"), [
    (None, (), (), B),  # the freest, by the share of its memory
    (None, (B,), (), A), (None, (), (B,), A), (4, (), (), B), (2, (C,), (), A), (0, (), (A,), B),
])  # fmt: skip
@pytest.mark.parametrize("environ", [{}, SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2"}])
def test_which_of_several_devices_is_taken(other, environ, prefer, held, barred, taken):
    """The freest, or the worker's own, else the next; none that failed in this run."""
    node = [
        Device(C, "Small", 2, 16 * GIB, 8 * GIB),
        Device(A, "Large", 0, 80 * GIB, 60 * GIB),
        Device(B, "Small", 1, 16 * GIB, 15 * GIB),
    ]
    other.update({uuid: holder(5) for uuid in held})
    failed = dict.fromkeys(barred, "bad")
    assert take(environ, node, prefer=prefer, barred=lambda: failed)[0].uuid == taken


@pytest.mark.parametrize(("free", "needed", "full"), [
    (10, 1, False), (9, 1, True), (49, 50, True), (50, 1000, False), (49, 1000, True),
])  # fmt: skip
def test_a_device_that_others_fill_is_left_alone(free, needed, full):
    """What the plan needs, but at most half and at least a tenth of the device, must be free."""
    assert bool(choose.obstacle(Device(A, "Fake", 0, 100, free), needed)) == full


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
    monkeypatch.setattr(leases, "holder", held.get)
    monkeypatch.setattr(leases, "take", lambda uuid: uuid not in held)
    return held


def holder(pid):
    """A process that leases a device."""
    return f"process {pid} of ana since 19:33"


def waiting(monkeypatch, events, limit=600.0, node=NODE[:1], environ=None):
    """Take a device while events happen: pairs of a time in seconds and a function to call then."""
    monkeypatch.setattr(choose, "time", clock := Clock(events))
    try:
        return take(environ or {}, node, limit=limit)[0].uuid, clock.now
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
    found, waited = waiting(monkeypatch, then, None, environ=environ)
    assert waited == pytest.approx(seconds, abs=5)
    said = f"{A} (Fake): leased to process 5 of ana since 19:33"
    assert caplog.messages[:3] == [f"waiting for a free device: {said}"] * 3
    limit = f"no device became free, and no lease changed hands for {seconds} s: {said}; end what"
    assert found.startswith(A if pids else limit)


def test_a_device_that_others_fill_is_waited_for(monkeypatch, other):
    """Without any lease, the wait ends at the limit, or once enough memory is free."""
    node = [Device(A, "Fake", 0, 16 * GIB, GIB)]
    said, _ = waiting(monkeypatch, [], node=node)
    assert "other processes fill it: 1.0 GiB of 16.0 GiB are free, 1.6 GiB should be; " in said
    freed = [(30, lambda: node.__setitem__(0, NODE[0]))]
    assert waiting(monkeypatch, freed, node=node)[0] == A


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
        "DeviceGetComputeRunningProcesses": lambda gpu: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in known(gpu, "processes")
        ],
        "DeviceGetMigMode": lambda gpu: known(gpu, "instances") and [1, 0],
        "DeviceGetMaxMigDeviceCount": lambda gpu: 7,
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
    nvml._leave_out.cache_clear()
    drive(monkeypatch, [
        pynvml.NVML_ERROR_NO_PERMISSION,
        {"uuid": A, "processes": [(7, None), (8, GIB)]},
        {"uuid": "GPU-cut", "instances": {0: f"{MIG}0", 5: f"{MIG}1"}},
        pynvml.NVML_ERROR_GPU_IS_LOST,
        {"uuid": C, "memory": None},
    ])  # fmt: skip
    own, here = (16 * GIB, 15 * GIB), psutil.virtual_memory().total
    *found, last = nvml.present()
    assert found == [
        Device(A, "Fake", 0, *own, ((7, None), (8, GIB))),
        Device(f"{MIG}0", "Fake", 1, *own), Device(f"{MIG}1", "Fake", 1, *own),
    ]  # fmt: skip
    assert (last.index, last.memory, 0 < last.free < here) == (3, here, True)
    assert caplog.messages == [
        "GPU 2 does not answer (GPU is lost) and is left out; it may need a reset"
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
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    for backend in ("auto", "cupy"):
        with pytest.raises(InputError, match=r"pip install .*cuda13.*, or set backend: numpy"):
            backends.load_backend(backend)
    assert backends.load_backend("numpy")[0] is np


def test_the_device_that_was_taken(monkeypatch, folder):
    """The receipt names it; variables that change cuBLAS's results go, the one of its log stays."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: 13000)
    monkeypatch.setattr(choose, "present", lambda: NODE)
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", Mock())
    names = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_LOG_LEVEL")
    given = dict.fromkeys(names, "1") | {"SHARDWISE_LEASES": str(folder)}
    with patch.dict(os.environ, given, clear=True):
        facts = {"name": "Fake", "uuid": A, "memory": 16 * GIB}
        assert backends.load_backend("auto", GIB, 0.1)[1] == facts
        assert os.environ[grants.VISIBLE] == A
        assert [name for name in names if name in os.environ] == ["CUBLASLT_LOG_LEVEL"]


@pytest.mark.parametrize(("driver", "client", "extra"), [
    (12040, None, "12"),
    (13000, None, "13"),
    (14010, None, "13"),  # newer drivers run what is built for older ones
    (11080, None, "none"),
    (None, "/usr/bin/sbatch", "12"),
    (None, None, "none"),
])  # fmt: skip
def test_cupy_follows_the_driver_or_the_schedulers_client(monkeypatch, driver, client, extra):
    """The driver's own CUDA version; on a login node the older one; elsewhere none."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(choose.shutil, "which", lambda name: client)
    assert choose.cuda_extra() == extra


@pytest.mark.parametrize(("words", "asked", "counted"), [
    ({"uge_gpu": "", "mem_mb": "4000"}, 1, 0),
    ({"gres": "gpu:4"}, 4, 0),
    ({"gres": "gpu:1g.10gb:7"}, 7, 0),
    ({"gres": "nvme:100,gpu:h200:2,gpu:a100:2"}, 4, 0),
    ({"gres": "gres/gpu:8(S:0-1)"}, 8, 0),
    ({"gres": "shard:4"}, 1, 0),
    ({"uge_gpu": "-pe smp 8 -l gpu=2,gpu_mem=40G -l gpu_type=H200"}, 2, 2),
    ({"uge_cards": "-l mem_free=4G,ngpus=3", "uge_queue": "-q gpu.q"}, 3, 3),
    ({"gpu": "8", "tasks": "8", "nodes": "2"}, 4, 0),
    ({"gres": "gpu:4", "tasks": "2", "nodes": "2"}, 4, 0),
    ({"uge_gpu": "-l gpu=1", "tasks": "3"}, 3, 1),
    ({"tasks": "2*attempt", "nodes": "attempt"}, 1, 0),
])  # fmt: skip
def test_how_many_devices_a_node_is_asked_for(words, asked, counted):
    """From the profile's words for Slurm and for Grid Engine; one if they name none."""
    assert (grants.asked(words), grants.counted(words)) == (asked, counted)


@pytest.mark.parametrize(("environ", "limit", "held"), [
    (SLURM, None, 60), (SLURM, 5, 5), (SLURM, 1000, 60), ({}, 1000, 0)
])  # fmt: skip
def test_where_all_have_failed_the_task_says_so(monkeypatch, environ, limit, held):
    """Try again later: the message says which device failed, and how."""
    monkeypatch.setattr(choose, "time", clock := Clock([]))
    with pytest.raises(TryAgain, match="each that it may take has failed in this run: bad"):
        take(environ | {"CUDA_VISIBLE_DEVICES": "0"}, barred=lambda: {A: "bad"}, limit=limit)
    assert clock.now == held
    assert leases.holder(A) is None


def test_a_device_that_fails_while_it_is_waited_for_is_not_taken(monkeypatch, other):
    """Its lease comes free as its task has failed."""
    other[A], failed = holder(5), {}
    monkeypatch.setattr(choose, "time", Clock([(30, lambda: failed.update({A: "bad"}))]))
    with pytest.raises(TryAgain, match="has failed in this run"):
        take({}, NODE[:1], barred=lambda: failed)


@pytest.mark.parametrize(("backend", "driver", "node", "barred", "count"), [
    ("auto", 12000, NODE, (), 3), ("cupy", 12000, NODE, (), 3), ("numpy", 12000, NODE, (), 1),
    ("auto", 12000, NODE, {A: "bad"}, 2), ("auto", 12000, NODE, ["GPU-of-elsewhere"], 3),
    ("auto", 12000, NODE, [A, B, C], 1), ("auto", None, NODE, (), 1),
])  # fmt: skip
def test_a_worker_for_each_device(monkeypatch, backend, driver, node, barred, count):
    """One on NumPy, one without a driver, and one if no device is left: it will say so."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(choose, "present", lambda: node)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert choose.workers(backend, barred) == count


def test_which_errors_a_device_is_to_blame_for():
    """Those that only a device causes, as cupy raises them or as the cause of another error."""
    error, caused = Exception(), RuntimeError("cannot begin")
    caused.__cause__ = error
    for status, blamed in {214: True, 220: True, 2: False, 46: False, 700: False}.items():
        error.status = status
        assert choose.is_fault(error) == choose.is_fault(caused) == blamed
    assert not choose.is_fault(ValueError())
