"""What killed processes leave on this machine: nothing, or it is removed where it is ours."""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from shardwise.processes import leftovers

from tests import factories, processes

RANKS = """
import os, sys, time
from argparse import Namespace
from shardwise.reduce import launch
mpi = launch.start_ranks(Namespace(ranks=3, launcher=None))
open(f"{sys.argv[1]}/{mpi.COMM_WORLD.rank}", "w").write(str(os.getpid()))
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.05)
assert mpi.COMM_WORLD.allreduce(1) == 3
"""


def segments_of(pid: int) -> list[str]:
    """The shared memory of a rank, as the kernel names it."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if "mpich_shm" in line})


@pytest.mark.parametrize("end", ["killed", "by themselves"])
def test_ranks_leave_no_shared_memory(tmp_path: Path, end: str) -> None:
    """It has no name as soon as they have it, and is the same memory; MPI ends well without."""
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    run = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(factories.SCRIPTS)},
        start_new_session=True,
    )
    try:
        processes.until(lambda: len([p for p in tmp_path.glob("[0-9]") if p.read_text()]) == 3)
        pids = [int(path.read_text()) for path in tmp_path.glob("[0-9]")]
        found = [segments_of(pid) for pid in pids]
        assert all(names and names == found[0] for names in found)
        assert all(name.endswith(" (deleted)") for name in found[0])
        if end == "killed":
            processes.kill(pids)
        else:
            (tmp_path / "go").touch()
        assert (run.wait(timeout=60) == 0) == (end != "killed")
    finally:
        processes.kill([run.pid])
        run.wait()
    assert not any(os.path.exists(name.removesuffix(" (deleted)")) for name in found[0])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def folder(temporary: Path, name: str = "snakemakeab12", content: str | None = None) -> Path:
    """A temporary folder as a killed Snakemake of ours leaves it."""
    made = temporary / name
    made.mkdir()
    text = leftovers.machine() if content is None else content
    (made / leftovers.LOCK).write_text(text)
    (made / "something").write_text("of snakemake")
    return made


def test_an_abandoned_folder_is_removed(temporary: Path) -> None:
    """By the next run, once."""
    made = folder(temporary)
    assert leftovers.remove_folders() == [made]
    assert not made.exists()
    assert leftovers.remove_folders() == []


def locked(temporary: Path) -> int:
    """A Snakemake that lives."""
    descriptor = os.open(folder(temporary) / leftovers.LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def opened(temporary: Path) -> "subprocess.Popen[bytes]":
    """A job that outlived its Snakemake, and works in that folder."""
    run = subprocess.Popen(["sleep", "100"], cwd=folder(temporary))
    time.sleep(0.1)
    return run


def linked(temporary: Path) -> None:
    """A link to a folder that looks like one of ours."""
    (temporary / "snakemakezz").symlink_to(folder(temporary, "elsewhere"))


KEPT = {
    "its process lives": locked,
    "a process works in it": opened,
    "it is a link": linked,
    "nobody says whose it is": lambda temporary: (temporary / "snakemakexy").mkdir(),
    "of another machine": lambda temporary: folder(temporary, content="another boot"),
    "its note is damaged": lambda temporary: (folder(temporary) / leftovers.LOCK).write_bytes(
        b"\xff"
    ),
    "another name": lambda temporary: folder(temporary, "pip-build"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_not_ours_or_not_dead_is_kept(temporary: Path, kind: str) -> None:
    """A name alone proves nothing."""
    made = KEPT[kind](temporary)
    before = sorted(temporary.rglob("*"))
    assert leftovers.remove_folders() == []
    assert sorted(temporary.rglob("*")) == before
    if isinstance(made, subprocess.Popen):
        made.kill()
        made.wait()
        assert leftovers.remove_folders() == [temporary / "snakemakeab12"]
    elif isinstance(made, int) and kind == "its process lives":
        os.close(made)
        assert leftovers.remove_folders() == [temporary / "snakemakeab12"]


def test_a_folder_of_another_user_is_kept(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in it."""
    folder(temporary)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert leftovers.remove_folders() == []
