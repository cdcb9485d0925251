"""Input that changes: while it is read, between plan and task, between two runs."""

import os
import re
import shutil
import threading

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.files import extents, pieces
from shardwise.multiply import copy, job
from shardwise.plan import identity, sources
from shardwise.plan import plan as plan_plan
from shardwise.plan.stack import StackReader

from tests import factories
from tests.factories import leftovers, save, stack


def edited(path, when="in place"):
    """Give a file other bytes of the same number, and its old time stamp."""
    before = path.stat()
    if when == "in place":
        with open(path, "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"\1\2\3\4\5\6\7\10")
    elif when == "replaced":
        other = path.with_name("other")
        shutil.copy2(path, other)
        other.replace(path)
    else:
        path.unlink()
        return
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def meanwhile(monkeypatch):
    """Something that happens to a file once the first of its bytes were read."""
    todo = {}

    def after(name):
        work = getattr(StackReader, name)

        def instead(self, *words):
            done = work(self, *words)
            for source in self._sources:
                if change := todo.pop(source.path, None):
                    change()
            return done

        monkeypatch.setattr(StackReader, name, instead)

    after("read")
    after("read_into")
    return todo


def refusal(work, made):
    """How a task ends with which nothing may be committed."""
    with pytest.raises(IntegrityError) as caught:
        work(made, "00000")
    names = {path.name for path in made.results.root.glob("products/*")}
    assert (names, leftovers(made.results.root)) == (set(), [])
    return str(caught.value)


ORDERS = {"C": lambda a: a, "F": np.asfortranarray, "big-endian": lambda a: a.astype(">f4")}
HOW = {"in place": "has changed while", "replaced": "has changed while", "removed": "is gone"}


@pytest.mark.parametrize(
    ("order", "how"), [("C", "in place"), ("F", "in place"), ("big-endian", "replaced"),
                       ("C", "removed")],
)  # fmt: skip
@pytest.mark.parametrize("stage", [copy.materialize, job.run_shard])
def test_a_that_changes_while_it_is_read(tmp_path, monkeypatch, meanwhile, stage, order, how):
    """Whoever reads it, in whatever order it lies: it is named, and nothing is committed."""
    monkeypatch.setattr(pieces, "PART_BYTES", 800)
    in_place = stage is job.run_shard
    array = ORDERS[order](stack((50, 10, 10)))
    made = factories.plan(tmp_path, array, shards=1, materialize=not in_place)
    path = tmp_path / "input.npy"
    meanwhile[str(path)] = lambda: edited(path, how)
    told = refusal(stage, made)
    assert f"{path} {HOW[how]}" in told
    assert not list(made.results.root.glob("shards/*"))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("keep", ["products", "sum"])
def test_b_that_changes_while_it_is_read(tmp_path, monkeypatch, meanwhile, shared, keep):
    """One for all, or one each."""
    monkeypatch.setattr(pieces, "PART_BYTES", 336)
    right = stack((9, 11) if shared else (6, 9, 11), seed=2)
    over = {"product": "A @ B", "shards": 1, "materialize": False, "keep": keep}
    made = factories.plan(tmp_path, stack((6, 17, 9)), right, **over)
    path = tmp_path / "right.npy"
    meanwhile[str(path)] = lambda: edited(path)
    assert f"{path} has changed while it was read" in refusal(job.run_shard, made)


def test_a_link_that_leads_elsewhere_for_a_moment(tmp_path, monkeypatch):
    """The files that were opened count, not what their name leads to before and after."""
    monkeypatch.setattr(pieces, "PART_BYTES", 800)
    one, two = (save(tmp_path / f"{i}.npy", stack((50, 10, 10), seed=i)) for i in (1, 2))
    link = tmp_path / "input.npy"
    link.symlink_to(one)
    over = {"input": str(link), "shards": 1, "materialize": False}
    made = factories.plan(tmp_path, **over)
    opening, turn = extents.OpenFile.__init__, threading.Lock()

    def leads_to(path):
        (tmp_path / "new").symlink_to(path)
        (tmp_path / "new").replace(link)

    def meanwhile(self, path):
        with turn:
            leads_to(two)
            try:
                opening(self, path)
            finally:
                leads_to(one)

    monkeypatch.setattr(extents.OpenFile, "__init__", meanwhile)
    # Whoever looks first says so: who reads the open file, or who asks for the name meanwhile.
    assert re.search(
        "has changed (while it was read|since the plan was made)", refusal(job.run_shard, made)
    )


def test_an_input_that_only_others_read_is_left_alone(tmp_path, meanwhile):
    """A file of another shard may change while this one is read."""
    for i in range(4):
        save(tmp_path / "in" / f"{i}.npy", stack((3, 3), seed=i))
    made = factories.plan(tmp_path, input=str(tmp_path / "in"), shards=2, materialize=False)
    meanwhile[str(tmp_path / "in" / "0.npy")] = lambda: edited(tmp_path / "in" / "3.npy")
    job.run_shard(made, "00000")
    with pytest.raises(IntegrityError, match=r"3.npy has changed since the plan was made"):
        job.run_shard(made, "00001")


# Between two runs.


def exchanged(one, two):
    """Let two files change places; each has its own size and time stamp, as after tar or rsync."""
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def rewritten(one, two):
    """Write the bytes of each of two files into the other, and keep their time stamps."""
    raw = [path.read_bytes() for path in (one, two)]
    times = [path.stat() for path in (one, two)]
    for path, other, own in zip((one, two), reversed(raw), times, strict=True):
        path.write_bytes(other)
        os.utime(path, ns=(own.st_atime_ns, own.st_mtime_ns))


@pytest.fixture
def folder(tmp_path):
    """Four files of equal size and time stamp."""
    paths = [save(tmp_path / "in" / f"{i}.npy", stack((3, 3), seed=i)) for i in range(4)]
    for path in paths:
        os.utime(path, ns=(10**18, 10**18))
    return paths


@pytest.mark.parametrize("change", [exchanged, rewritten])
def test_files_that_change_places_are_noticed(tmp_path, folder, change):
    """The plan changes for their shards, and no task reads them under the old one."""
    over = {"input": str(tmp_path / "in"), "shards": 4, "materialize": False}
    cache = tmp_path / "cache.json"
    given = factories.settings(**over)
    sources.stack_of(given, tmp_path / "x", cache)
    made = factories.plan(tmp_path, **over)
    change(folder[1], folder[2])
    with pytest.raises(IntegrityError, match=r"1.npy has changed since the plan was made"):
        job.run_shard(made, "00001")
    job.run_shard(made, "00000")
    again = factories.plan(tmp_path, **over)
    prints = [[row.key for row in plan.shards.values()] for plan in (made, again)]
    assert [a == b for a, b in zip(*prints, strict=True)] == [True, False, False, True]
    known = sources.stack_of(given, tmp_path / "x", cache)  # the cache hides nothing
    assert known.sources == tuple(again.sources)


def test_inodes_count_where_the_file_system_keeps_them(tmp_path, monkeypatch):
    """Elsewhere a dash stands for the inode."""
    path = save(tmp_path / "a.npy", stack((2, 3, 3)))
    status = path.stat()
    size, modified, changed, inode = identity.identity_of(str(path), status).split(":")
    assert [int(size), int(modified), int(changed)] == [
        status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    ]  # fmt: skip
    assert int(inode) == status.st_ino
    monkeypatch.setattr(identity, "_keeps_inodes", lambda device: False)
    assert identity.identity_of(str(path), status) == f"{size}:{modified}:{changed}:-"

    def planned(text):
        return identity.is_as_planned(plan_plan.Source(str(path), 0, 2, text), status)

    assert planned(f"{size}:{modified}:{changed}:{inode}")
    assert planned(f"{size}:{modified}:{changed}:999")
    assert not planned(f"{size}:{modified}:1:{inode}")
    monkeypatch.undo()
    assert not planned(f"{size}:{modified}:{changed}:999")
    assert planned(f"{size}:{modified}:{changed}:-")


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [("ext4", True), ("nfs4", True), ("fuse.sshfs", False), ("vfat", False)],
)
def test_file_systems_that_make_up_their_inodes(monkeypatch, kind, keeps):
    """They are known by the type that the kernel gives for the device."""
    line = f"36 35 98:1 / /mnt rw shared:1 - {kind} what rw\n"
    other = "37 35 98:0 / /other rw - fuse.other what rw\n"
    monkeypatch.setattr(identity.Path, "read_text", lambda self, **over: other + line)
    identity._keeps_inodes.cache_clear()
    assert identity._keeps_inodes(os.makedev(98, 1)) is keeps
    identity._keeps_inodes.cache_clear()
