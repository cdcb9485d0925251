"""Each stage, killed or failed by the disk at any of its calls: its files are whole or absent."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from shardwise.plan import planner

from tests import factories
from tests.faults.program import ENDED

fault, night = pytest.mark.fault, pytest.mark.nightly
ENDS = [
    pytest.param("kill", 3, marks=fault("kill -9 at a call to the disk")),
    pytest.param("kill", 1, marks=[fault("kill -9 at a call to the disk"), night]),
    pytest.param("power", 4, marks=fault("power loss at a call to the disk")),
    pytest.param("power", 1, marks=[fault("power loss at a call to the disk"), night]),
    pytest.param("term", 1, marks=fault("SIGTERM at 30 moments")),
]
"""What ends a stage, and the stride over its calls that change a file."""

ERRORS = [
    fault("disk full"), fault("quota error at fsync"), fault("input/output error"),
    fault("results folder that turns read-only in mid-run"),
    fault("rename that reports failure but happened"), fault("rename that fails"),
    fault("short write"), fault("disk without flushes of folders"),
]  # fmt: skip


@pytest.fixture(scope="module")
def program() -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs program.py in a folder in memory: on a disk its many fsyncs would take minutes."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as folder:

        def run(*words: object) -> dict[str, Any]:
            own = tempfile.mkdtemp(dir=folder)
            # It forks, so no library may start threads.
            env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, "-m", "tests.faults.program", own, *map(str, words)],
                env=os.environ | env | {"PYTHONPATH": f"{factories.SCRIPTS}:{factories.ROOT}"},
                cwd=factories.ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
            return json.loads(done.stdout)

        yield run


def check(report, name, tried):
    """Every stage was tried, and no try was wrong; counts the tries."""
    assert [found for found in report["wrong"] if found[1] == name] == []
    assert all(report["stages"].values())
    tried(report["tried"][name])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("way", "every"), ENDS)
def test_each_stage_is_ended_at_each_call(program, tried, way, every):
    """Before the call, half-way through a write, or at the end; then a rerun does the rest.

    After power loss, what no fsync has covered is gone. After SIGTERM a stage leaves no temporary
    file, and ends with 143, or with 0 if it was all but done.
    """
    stages = ("multiply", "multiply, keep: sum", "reduce") if way == "term" else ()
    check(program(way, every, *stages), ENDED[way], tried)


@pytest.fixture(scope="module", params=[3, factories.nightly(1)])
def report(program, request):
    """Each stage with each error where it can happen, at every third call, at night at each."""
    return program("errors", request.param)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [pytest.param(one.args[0], marks=one) for one in ERRORS])
def test_each_stage_meets_the_fault_at_each_call(report, tried, name):
    """It ends with 75 and names the file, or does all; a rerun without the fault is right."""
    check(report, name, tried)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 600 KiB, unmounted in the end."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        assert os.environ.get("CI") != "true", f"CI must be able to mount: {done.stderr}"
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.fault("disk full")
@pytest.mark.parametrize("leave", [30_000, *map(factories.nightly, (0, 90_000, 200_000))])
def test_a_real_disk_is_full(small_disk, tmp_path, leave):
    """With too little room left it ends with 75 and says so; with room it succeeds."""
    stack = factories.stack((4, 100, 100))
    source = factories.save(tmp_path / "input.npy", stack)
    with pytest.MonkeyPatch.context() as patch:  # the disk has filled up since the run began
        patch.setattr(planner, "check_folder", lambda plan: None)
        made = factories.plan(small_disk, input=str(source), shards=2)
    filler, free = small_disk / "filler", os.statvfs(small_disk)
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - leave)))
    words = ["dispatch", "--plan", made.results.plan]
    done = factories.run(*words)
    assert done.returncode == 75, done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "make room" in done.stderr
    assert factories.leftovers(small_disk) == []
    filler.unlink()
    assert factories.run(*words).returncode == 0
    assert (factories.products(made) == stack @ stack).all()
