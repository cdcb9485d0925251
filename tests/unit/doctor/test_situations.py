"""Tables of situations and of what the doctor finds in them; its checks get them as arguments."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shardwise.devices.nvml import Device
from shardwise.doctor import gpus, here
from shardwise.doctor.finding import Finding, Reply

from tests.processes import living, until

GIB = 2**30
RIGHT = ["cupy-cuda12x 14.2.0", "kvikio-cu12 26.10.0", "libkvikio-cu12 26.10.0"]


def silent(words: Sequence[str]) -> Reply:
    """A program that is not there."""
    return Reply(127, "")


def expect(findings: Iterable[Finding], expected: dict[str, str]) -> None:
    """Each name has a finding of this level with these words, and no other is worse than a note."""
    found, bad = list(findings), ("later", "fault")
    assert [one for one in found if one.level != "ok" and not one.allowed] == []
    assert [one for one in found if one.level in bad and not one.do] == []
    told = [f"{one.name}: {one.level}: {one.found} → {one.do}" for one in found]
    for name, text in expected.items():
        level, _, words = text.partition(" ")
        assert any(one.startswith(f"{name}: {level}") and words in one for one in told), told
    worst = {name for name, text in expected.items() if text.startswith(bad)}
    assert {one.name for one in found if one.level in bad} == worst


@pytest.mark.parametrize(("name", "reply", "expected"), [
    ("slurm", Reply(0, "cpu (null)\ngpu* gpu:h200:2\n"), "ok GPUs: cpu (null), gpu* gpu:h200:2"),
    ("slurm", Reply(1, "x\nno contact"), "note no contact → try again"),
    ("grid engine", Reply(0, "make\nmpi\n"), "ok parallel environments: make, mpi"),
])  # fmt: skip
def test_schedulers(name: str, reply: Reply, expected: str) -> None:
    """What it has is listed; one that does not answer is a note: local jobs need none."""
    found = here.schedulers(lambda words: reply, name, lambda client: f"/usr/bin/{client}")
    expect(found, {name: expected})
    (none,) = here.schedulers(silent, name, lambda client: None)
    assert (none.level, "not on PATH" in none.found) == ("note", True)


@pytest.mark.parametrize(("disk", "client", "expected"), [
    ("ext4 / and more", None, {"file system": "ok / and more"}),
    ("ext4 /", "sbatch", {"file system": "note key results"}),
    ("nfs4 /data", "sbatch", {"file system": "ok"}), (None, None, {}),
])  # fmt: skip
def test_disks(disk: Any, client: Any, expected: dict[str, str], tmp_path: Path) -> None:
    """The disk of a results folder that does not exist yet is judged; nothing is written."""
    reply = Reply(1, "") if disk is None else Reply(0, f"{disk}\n")
    found = here.disk(lambda words: reply, tmp_path / "new", lambda name: client)
    expect(found, expected | {"space": "ok free"})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").symlink_to("nowhere")
    found = here.disk(silent, tmp_path / "new" / "deeper")
    expect(found, {"folder": f"fault {tmp_path}/new is not a writable"})


def test_packages() -> None:
    """Packages that do not load are faults; variables that lead to others are named."""
    for environ, cure in ({}, "pip install"), ({"PYTHONPATH": "/x"}, "unset PYTHONPATH"):
        found = here.packages(lambda words: Reply(1, "x\nImportError: no"), environ)
        expect(found, {"loading": f"fault {cure}"})


HELLO = "hello node1 MPICH 5"


@pytest.mark.parametrize(("reply", "expected"), [
    (Reply(0, f"noise\n{HELLO}\nhello a MPICH 5\n"), "ok one world on a, node1: MPICH 5"),
    (Reply(1, f"{HELLO}\nsrun: error: no pmi"), "fault no pmi"),
    (Reply(None, f"{HELLO}\nno answer in time"), "later 1 ranks have met: no answer in time"),
])  # fmt: skip
def test_ranks(reply: Reply, expected: str) -> None:
    """Two ranks must share a world; no answer means try later."""
    found = here.ranks(lambda words: reply, "mpiexec")
    expect(found, {"launcher": "ok mpiexec -n 2", "hello": expected})


def device(index: int) -> Device:
    """A device of 80 GiB."""
    return Device(f"GPU-{index}", "NVIDIA H200", index, 80 * GIB, 79 * GIB)


def look(*present: Device, backend: str = "auto", cuda: Any = 12080, **over: Any) -> list[Finding]:
    """The findings for these devices, whose products are right unless ``replies`` says else."""
    right, tried = Reply(0, "through host memory\n"), over.get("replies", {})
    return list(gpus.check(
        lambda words, **environ: tried.get(environ["CUDA_VISIBLE_DEVICES"], right), backend,
        lambda: cuda, lambda: list(present), over.get("packages", RIGHT),
        over.get("environ", {}), lambda uuid: over.get("processes", []),
    ))  # fmt: skip


@pytest.mark.parametrize(("over", "expected"), [
    ({}, {"driver": "ok runs CUDA up to 12.8", "cupy": "ok cupy-cuda12x 14.2.0",
          "kvikio": "ok 26.10.0, files are read through host memory", "GPU 0": "ok computes"}),
    ({"backend": "numpy"}, {"driver": "note backend: numpy"}),
    ({"cuda": None}, {"driver": "note no NVIDIA driver"}),
    ({"cuda": None, "backend": "cupy"}, {"driver": "fault in a job on a GPU node"}),
    ({"packages": []}, {"cupy": "fault not installed", "kvikio": "fault not installed"}),
    ({"packages": [*RIGHT, "cupy-cuda13x 1"]}, {"cupy": "fault 14.2.0, cupy-cuda13x"}),
    ({"packages": ["cupy 14", "kvikio-cu12 26"]}, {"cupy": "ok cupy 14"}),  # from source
    ({"environ": {"CUDA_VISIBLE_DEVICES": "1"}}, {"GPU 0": "note not granted", "GPU 1": "ok"}),
    ({"replies": {"GPU-0": Reply(None, "")}}, {"GPU 0": "later hangs", "GPU 1": "ok"}),
    ({"replies": {"GPU-0": Reply(1, "AssertionError: wrong")}}, {"GPU 0": "later wrong"}),
    ({"replies": {"GPU-0": Reply(75, "7 has it; end what hangs")}},
     {"GPU 0": "note tried: 7 has it → wait"}),
    ({"replies": dict.fromkeys(("GPU-0", "GPU-1"), Reply(75, "leased"))},
     {"GPU 0": "note leased", "devices": "later no device"}),
])  # fmt: skip
def test_devices(over: dict[str, Any], expected: dict[str, str]) -> None:
    """Driver, packages, and a product on each of two devices."""
    expect(look(device(0), device(1), **over), expected)


def test_the_holders_of_a_device() -> None:
    """A visible process, one of another container, and a zombie, each with its memory."""
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: not living([zombie.pid]))
    sizes = {os.getpid(): 2 * GIB, 2**22 + 1: None, zombie.pid: GIB}
    processes = [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in sizes.items()]
    found = look(device(0), processes=processes)
    visible, hidden, dead = (one.found for one in found if "held by" in one.found)
    zombie.wait()
    assert visible.startswith(f"held by process {os.getpid()}: 2.0 GiB, ")
    assert hidden.startswith("held by process 4194305: not visible here")
    assert f", of {os.getpid()}, " in dead
    assert dead.endswith("zombie")
