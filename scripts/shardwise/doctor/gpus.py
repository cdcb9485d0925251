"""GPUs: driver, cupy and KvikIO; each device, who holds it, and whether it computes."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import distributions
from typing import Any

import psutil

from shardwise import host
from shardwise.devices import choose, nvml
from shardwise.devices.nvml import Device
from shardwise.doctor.finding import Call, Finding, Findings, Reply, judge
from shardwise.units import human_bytes

_WANTED = ("username", "status", "ppid", "cmdline", "name")  # of a process that holds a device
_PRODUCT = """
import sys
from shardwise import errors
from shardwise.devices import choose
try:
    choose.take(2**29, limit=0)
    import cupy, kvikio.defaults as kvikio
    ones = cupy.ones((256, 256), "float32")
    assert float((ones @ ones).sum()) == 256**3, "a product of ones is wrong"
except Exception as error:
    sys.exit(errors.explain(error)[0])
print("through host memory" if kvikio.is_compat_mode_preferred() else "by GPUDirect Storage")
"""
"""Takes its device as a task does, multiplies ones there, and says how bytes get there."""


def _processes(uuid: str) -> list[Any]:
    """What computes on a device, as NVML says; nothing if the driver hides it."""
    import pynvml as nvml

    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        return nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
    return []


def check(
    ask: Call, backend: str = "auto", cuda: Call = choose.driver_cuda_version,
    listed: Call = nvml.present, packages: Sequence[str] | None = None, environ: Any = os.environ,
    processes: Call = _processes,
) -> Findings:  # fmt: skip
    """All about GPUs; only one finding if there is no driver or the config asks for NumPy."""
    if (version := cuda()) is None or backend == "numpy":
        found = "no NVIDIA driver here (libcuda.so.1)" if version is None else "backend: numpy"
        do = f"run it in a job on a GPU node, after {host.install(12)}; or set backend: numpy"
        level = "fault" if backend == "cupy" else "note"
        yield Finding(level, "driver", found, "NumPy, unless the config says cupy", do)
        return
    most = version // 1000
    if packages is None:
        packages = [f"{one.metadata['Name']} {one.version}" for one in distributions()]
    yield Finding("ok", "driver", f"runs CUDA up to {most}.{version % 1000 // 10}")
    cupy = [one for one in packages if re.match(r"cupy(-cuda\d+x)? ", one)]
    kvikio = [one for one in packages if re.match(r"kvikio(-cu\d+)? ", one)]
    built = re.findall(r"cupy-cuda(\d+)", " ".join(cupy))  # a cupy built here names no version
    good, allowed = len(cupy) == 1 and all(int(n) <= most for n in built), f"one, for CUDA {most}"
    do = f"{host.install(min(most, choose.CUDA_MAJORS[-1]))}; or set backend: numpy"
    yield judge(good, "cupy", ", ".join(cupy) or "not installed", allowed, do, "fault")
    present = listed()
    ours = choose.candidates(environ, present)
    tried = ours if good and kvikio else []
    names = {*choose.variables(environ), choose.VISIBLE}  # set so that each program sees one device
    line = [sys.executable, "-P", "-c", _PRODUCT]
    with ThreadPoolExecutor(max(1, len(tried))) as pool:
        asked = pool.map(lambda one: ask(line, **dict.fromkeys(names, one.uuid)), tried)
        replies = dict(zip(tried, asked, strict=True))
    ways = {f"files are read {reply.last}" for reply in replies.values() if reply.code == 0}
    found, allowed = ", ".join([*kvikio, *ways]), "one kvikio: GPU tasks read files with it"
    yield judge(kvikio, "kvikio", found or "not installed", allowed, do, "fault")
    for device in present:
        why = "see cupy and kvikio" if device in ours else "it is not granted here"
        yield _device(device, replies.get(device, Reply(75, why)))
        yield from _held(device, processes(device.uuid))
    allowed = "a GPU, or a MIG instance of one, that no other task uses"
    do = "wait, as a task would; in a job, ask for a GPU; else ask the admin"
    if tried and not ways:
        yield Finding("later", "devices", "no device is available now", allowed, do)


def _device(device: Device, reply: Reply) -> Finding:
    """The finding on a device: whether a product on it was right, or why none was tried."""
    said = reply.last.partition("; end what")[0]
    level, words, do = {
        0: ("ok", "computes", ""),
        2: ("fault", said, host.install()),
        75: ("note", f"not tried: {said}", "wait, or see below who holds it"),
        None: ("later", "a product hangs", "try --time-limit 60; if it persists, ask for a reset"),
    }.get(reply.code, ("later", f"a product fails: {said}", "tell the admin: see dmesg"))
    memory = f"{human_bytes(device.free)} free of {human_bytes(device.memory)}"
    found = f"{device.name}, {memory}, {device.uuid}: {words}"
    facts = {"uuid": device.uuid, "works": level == "ok"}
    allowed = "a device that one task alone uses, and that computes right" if do else ""
    return Finding(level, f"GPU {device.index}", found, allowed, do, facts)


def _held(device: Device, processes: Iterable[Any]) -> Findings:
    """The processes that compute on a device."""
    name, facts = f"GPU {device.index}", {"uuid": device.uuid}
    for process in processes:
        pid, held = process.pid, process.usedGpuMemory
        memory = "" if held is None else f"{human_bytes(held)}, "
        who = "not visible here (another container's?)"
        with suppress(psutil.Error):  # else it has ended, or is of another container
            known = psutil.Process(pid).as_dict(_WANTED, ad_value="")
            words = shlex.join(known["cmdline"]) or known["name"]  # a zombie ends with its parent
            who = f"{known['username']}, of {known['ppid']}, {words:.120}, {known['status']}"
        found = f"held by process {pid}: {memory}{who}"
        do = "ask its user to end it, if it should not be there; the doctor ends nothing"
        yield Finding(
            "note", name, found, "one task per device", do, facts | {"pid": pid, "memory": held}
        )
