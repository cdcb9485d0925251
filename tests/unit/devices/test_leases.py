"""Leases by real processes: never two on a device, none that outlives its task, traps refused."""

import fcntl
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from shardwise.devices import choose
from shardwise.errors import TryAgain

from tests import factories
from tests.processes import until

UUID = "GPU-8f1a6c4e-0000-4000-8000-000000000001"


@pytest.mark.parametrize("count", [1, 3])
def test_never_two_tasks_on_a_device(folder, tmp_path, count):
    """32 tasks on some devices. Many die by SIGKILL, some of these while a child works on."""
    chance, ends = random.Random(count), ["exit", "kill", "kill", "orphan"]
    uuids, records = [f"GPU-{i}" for i in range(count)], tmp_path / "records"
    tasks = [(chance.uniform(0, 0.02), chance.choice(ends)) for _ in range(32)]
    given = {"uuids": uuids, "records": str(records), "tasks": tasks}
    line = [sys.executable, "-S", factories.ROOT / "tests/lease_program.py", json.dumps(given)]
    subprocess.run(line, env=os.environ | {"PYTHONPATH": str(factories.SCRIPTS)}, check=True)
    until(lambda: not any(choose.lease(uuid, look=True) for uuid in uuids))
    lines = map(str.split, records.read_text().splitlines())
    uses = [(uuid, float(b), float(e)) for uuid, b, e in lines]
    assert len(uses) == 32
    assert {uuid for uuid, *_ in uses} == {*uuids}, "the tasks should have spread over the devices"
    for (one, _, end), (other, begin, _) in itertools.pairwise(sorted(uses)):
        assert one != other or end <= begin, f"two tasks at once on {one}"
    assert not any(map(choose.lease, uuids))


@pytest.mark.parametrize(("text", "holder"), [
    (b"", "a process that does not say who it is"), (b"\xff\na\x1b[2J", "\ufffd\\na\\x1b[2J"),
])  # fmt: skip
def test_a_signature_is_not_trusted(folder, text, holder):
    """Any user may write it: the lease is held all the same, and no control character is shown."""
    choose.lease(UUID)
    (folder / f"{UUID}.lease").write_bytes(text)
    assert choose.lease(UUID, look=True) == choose.lease(UUID) == holder


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be other users")
def test_users_share_the_leases(folder, monkeypatch):
    """A lease of one user keeps the others off; afterwards its folder and file serve them."""
    shared, held = Path(tempfile.mkdtemp(dir="/tmp")), []
    monkeypatch.setenv("SHARDWISE_LEASES", str(shared / "leases"))
    shared.chmod(0o777)
    monkeypatch.setattr(os, "set_inheritable", lambda descriptor, _: held.append(descriptor))
    try:
        for uid, other in ((12345, 23456), (23456, 12345), (0, 12345)):
            for own in (uid, other):
                os.setresuid(own, own, 0)
                said = choose.lease(UUID)
                os.setresuid(0, 0, 0)
                assert bool(said) == (own != uid)
            assert said.startswith(f"process {os.getpid()} of user {uid} since")
            os.close(held.pop())
        assert (shared / "leases").stat().st_mode & 0o7777 == 0o1777
        assert (shared / "leases" / f"{UUID}.lease").stat().st_mode & 0o7777 == 0o666
    finally:
        os.setresuid(0, 0, 0)
        shutil.rmtree(shared)


def test_files_of_other_users_are_opened_without_creating(folder, monkeypatch):
    """If fs.protected_regular is set, the kernel refuses O_CREAT on them in a sticky folder."""
    opened, mask = os.open, os.umask(0o27)

    def protected(path, flags, *mode):
        if flags & os.O_CREAT and not flags & os.O_EXCL and os.path.exists(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *mode)

    choose.lease("other")
    with open(folder / f"{UUID}.lease", "x") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert choose.lease(UUID, look=True) is None, "one look keeps another off"
    monkeypatch.setattr(os, "open", protected)
    assert choose.lease(UUID) is None
    assert os.umask(mask) == 0o27, "files that this process creates later are open to all"


@pytest.mark.parametrize(("lay", "message"), [
    (lambda file, victim: file.parent.touch(), "File exists"),
    (lambda file, victim: file.parent.mkdir() or file.symlink_to(victim), "Too many levels of sym"),
])  # fmt: skip
def test_a_folder_that_cannot_serve_is_explained(folder, tmp_path, lay, message):
    """The message says what is wrong there and how the folder should be; nothing is written."""
    (victim := tmp_path / "victim").write_text("kept")
    lay(folder / f"{UUID}.lease", victim)
    with pytest.raises(TryAgain, match=message) as refusal:
        choose.lease(UUID)
    assert f"mkdir -m 1777 {folder}" in str(refusal.value)
    assert victim.read_text() == "kept"
