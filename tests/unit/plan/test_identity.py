"""Input that changes: while it is read, between plan and task, between two runs."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.files import extents, pieces
from shardwise.multiply import copy, job
from shardwise.plan import sources

from tests import factories
from tests.factories import kept, leftovers, save, stack


@pytest.fixture
def meanwhile(monkeypatch):
    """Actions, by path of a file, that happen once its first bytes have been read."""
    todo, read = {}, extents.OpenFile.read_at

    def instead(self, *words):
        read(self, *words)
        todo.pop(self.name, lambda: None)()

    monkeypatch.setattr(extents.OpenFile, "read_at", instead)
    return todo


def refusal(work, made):
    """The message of a task that has to fail, and commits nothing."""
    with pytest.raises(IntegrityError) as caught:
        work(made, "00000")
    names = {path.name for path in made.results.root.glob("products/*")}
    assert (names, leftovers(made.results.root)) == (set(), [])
    return str(caught.value)


def edited(path):
    """Give a file other bytes of the same number, and its old time stamp."""
    kept(path, path.read_bytes()[:-8] + b"\1\2\3\4\5\6\7\10")


def replaced(path):
    """Put another file of the same bytes and time stamp in its place."""
    shutil.copy2(path, other := path.with_name("other"))
    other.replace(path)


@pytest.mark.parametrize(("order", "change"), [
    (np.ascontiguousarray, edited), (np.asfortranarray, edited),
    (lambda a: a.astype(">f4"), replaced), (np.ascontiguousarray, Path.unlink),
])  # fmt: skip
@pytest.mark.parametrize("stage", [copy.materialize, job.run_shard])
def test_a_that_changes_while_it_is_read(tmp_path, monkeypatch, meanwhile, stage, order, change):
    """Whichever stage reads it, in whatever order: A is named, and nothing is committed."""
    monkeypatch.setattr(pieces, "PART_BYTES", 800)
    over = {"shards": 1, "materialize": stage is not job.run_shard}
    made = factories.plan(tmp_path, order(stack((50, 10, 10))), **over)
    path = tmp_path / "input.npy"
    meanwhile[str(path)] = lambda: change(path)
    assert f"{path} has changed while it was read" in refusal(stage, made)
    assert not list(made.results.root.glob("shards/*"))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("keep", ["products", "sum"])
def test_b_that_changes_while_it_is_read(tmp_path, monkeypatch, meanwhile, shared, keep):
    """One B for all, or one for each A."""
    monkeypatch.setattr(pieces, "PART_BYTES", 336)
    right = stack((9, 11) if shared else (6, 9, 11), seed=2)
    over = {"product": "A @ B", "shards": 1, "materialize": False, "keep": keep}
    made = factories.plan(tmp_path, stack((6, 17, 9)), right, **over)
    path = tmp_path / "right.npy"
    meanwhile[str(path)] = lambda: edited(path)
    assert f"{path} has changed while it was read" in refusal(job.run_shard, made)


def exchanged(one, two):
    """Let two files change places; each has its own size and time stamp, as after tar or rsync."""
    aside = one.rename(one.with_name("aside"))
    two.rename(one)
    aside.rename(two)


def rewritten(one, two):
    """Write the bytes of each of two files into the other, and keep their time stamps."""
    for path, other in zip((one, two), (two.read_bytes(), one.read_bytes()), strict=True):
        kept(path, other)


@pytest.fixture
def folder(tmp_path):
    """Four files of equal size and time stamp."""
    paths = [save(tmp_path / "in" / f"{i}.npy", stack((3, 3), seed=i)) for i in range(4)]
    for path in paths:
        os.utime(path, ns=(10**18, 10**18))
    return paths


@pytest.mark.parametrize("change", [exchanged, rewritten])
def test_files_that_change_places_are_noticed(tmp_path, folder, change):
    """A new plan changes the keys of their shards; under the old one no task reads them."""
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
