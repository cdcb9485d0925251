"""The doctor's probes of a results folder: this file system, and pretended others."""

import errno
import functools
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from shardwise.doctor import folders
from shardwise.doctor.findings import FAULT, NOTE, OK, Finding

Mount = namedtuple("Mount", "device mountpoint fstype opts")
MOUNTS = [
    Mount(device, point, type, options)
    for device, point, type, options in (
        ("/dev/vda", "/", "ext4", "rw,errors=remount-ro"),
        ("proc", "/proc", "proc", "rw"),
        ("server:/export", "/data", "nfs4", "rw,vers=4.2,local_lock=none"),
        ("10.0.0.1@tcp:/scratch", "/data/a b", "lustre", "rw,flock"),
        ("/dev/vdb", "/over", "xfs", "rw"),
        ("ada@host:/", "/over", "fuse.sshfs", "rw"),
        ("tmpfs", "/dev/shm", "tmpfs", "rw"),
    )
]


def test_this_file_system_passes(tmp_path: Path) -> None:
    """All probes are made, none fails, and nothing is left."""
    found = {f.name: f for f in folders.findings(tmp_path / "out" / "results")}
    assert set(found) == {"file system", "space", "rename", "locks"}
    assert (found["rename"].level, found["locks"].level) == (OK, OK)
    assert found["file system"].facts["folder"] == str(tmp_path)
    assert "not made yet" in found["file system"].text
    assert found["space"].facts["free"] == pytest.approx(_free(tmp_path), abs=2**30)
    assert list(tmp_path.iterdir()) == []


def _free(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def test_a_folder_that_takes_no_file() -> None:
    """/proc is one for everybody, root included."""
    *_, last = folders.findings(Path("/proc/results"))
    assert (last.name, last.level, last.code) == ("writing", FAULT, 2)
    assert last.cure


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
@pytest.mark.parametrize("name", ["results", "results/deeper"])
def test_results_that_can_be_no_folder(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    """A file in their place, or on the way to it, or a link that leads nowhere."""
    make(tmp_path / "results")
    (found,) = folders.findings(tmp_path / name)
    assert (found.level, found.code) == (FAULT, 2)
    assert found.text.startswith(f"{tmp_path}/results is no folder")


@pytest.mark.parametrize(
    ("path", "type", "begin"),
    [
        ("/home/ada", "ext4", None),
        ("/database", "ext4", None),  # begins with the name of a mount, and is none
        ("/data", "nfs4", "other nodes"),
        ("/data/x/y", "nfs4", "other nodes"),
        ("/data/a b/c", "lustre", "large files"),
        ("/over/x", "fuse.sshfs", "a file system in user space"),  # the later mount hides one
        ("/dev/shm/x", "tmpfs", "it lies in memory"),
    ],
)
def test_the_mount_of_a_folder(path: str, type: str, begin: str | None) -> None:
    """The longest mount point above it, and the last of the same; with its caveat."""
    assert folders.mount(Path(path), MOUNTS).fstype == type
    found = place(path, False)
    assert (found.level == OK) if begin is None else (f": {begin}" in found.text)


def place(folder: str, cluster: bool) -> Finding:
    """What is told of a folder on one of these mounts."""
    path = Path(folder)
    return folders._place(path, path, folders.mount(path, MOUNTS), cluster)


def test_a_disk_of_this_machine_beside_a_scheduler() -> None:
    """Other nodes do not see it; without a scheduler there are none."""
    assert (place("/home", False).level, place("/home", False).facts["local"]) == (OK, True)
    assert place("/home", True).level == NOTE
    assert "jobs on other nodes need a shared disk" in place("/home", True).cure


def _refused(*_: object, error: int = errno.ENOLCK, **__: object) -> None:
    raise OSError(error, os.strerror(error))


@pytest.mark.parametrize(
    ("flock", "words"),
    [(_refused, "No locks available"), (lambda *_: None, "two got the same lock")],
)
def test_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[..., None], words: str
) -> None:
    """None at all, or some that keep nobody out: a note that says what follows from it."""
    monkeypatch.setattr(folders.fcntl, "flock", flock)
    found = folders.locks(tmp_path)
    assert (found.level, found.facts["works"]) == (NOTE, False)
    assert words in found.text
    assert "would not be noticed" in found.text


@pytest.mark.parametrize("call", ["fsync", "mkdir"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_spent_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """Whichever probe meets it first: the reason and the cure are told."""
    monkeypatch.setattr(folders.os, call, functools.partial(_refused, error=error))
    *_, last = folders.findings(tmp_path)
    assert (last.name, last.level, last.code) == ("writing", FAULT, 2)
    assert os.strerror(error) in last.text
    assert last.cure.startswith("make room")
