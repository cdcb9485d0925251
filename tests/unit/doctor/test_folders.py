"""What the doctor says of a results folder: this file system, and pretended others."""

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


def test_this_file_system_is_named(tmp_path: Path) -> None:
    """As one that is there, before the folder is; nothing is written."""
    (found,) = folders.findings(tmp_path / "out" / "results")
    assert found.facts["folder"] == str(tmp_path)
    assert "not made yet" in found.text
    assert list(tmp_path.iterdir()) == []


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
        ("/dev/shm/x", "tmpfs", "it is in memory"),
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
    return folders.place(path, path, folders.mount(path, MOUNTS), cluster)


def test_a_disk_of_this_machine_beside_a_scheduler() -> None:
    """Other nodes do not see it; without a scheduler there are none."""
    assert (place("/home", False).level, place("/home", False).facts["local"]) == (OK, True)
    assert place("/home", True).level == NOTE
    assert "jobs on other nodes need a shared disk" in place("/home", True).cure


def test_a_file_system_that_nobody_names_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a chroot the list of mounts may be empty."""
    monkeypatch.setattr(folders.psutil, "disk_partitions", lambda all: [])
    (found,) = folders.findings(tmp_path)
    assert (found.level, found.name) == (NOTE, "file system")
