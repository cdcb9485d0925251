"""From a config to a plan on the disk: what it checks, and which shards a change computes again."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardwise.errors import InputError, IntegrityError
from shardwise.files import small
from shardwise.plan import plan as plan_file
from shardwise.plan import planner
from shardwise.plan.plan import Source, from_tsv, to_tsv

from tests import factories
from tests.factories import save, settings, stack


def keys(**over):
    """The keys of a config's plan, in order."""
    made = planner.make(settings(**over))
    return [row.key for row in made.shards.values()]


RECIPE = {"matrices": 6, "dim": 3, "dtype": "float32", "seed": 0}


@pytest.mark.parametrize(("same", "over"), [
    *((False, over) for over in (
        {"product": "A.T @ A"}, {"keep": "sum"}, {"backend": "auto"}, {"verify": False},
        {"shards": 2}, *({"synthetic": RECIPE | part} for part in (
            {"matrices": 7}, {"dim": 4}, {"seed": 1}, {"dtype": "float64"})),
    )),
    *((True, over) for over in (
        {"reduce": {"ranks": 7}}, {"reduce": {"statistics": ["mean"]}}, {"materialize": False},
        {"shard_bytes": 1}, {"results": "elsewhere"},
    )),
], ids=str)  # fmt: skip
def test_what_changes_products_changes_every_key(same, over):
    """A setting changes all keys if products, proofs or the cut depend on it, else none."""
    before, after = (keys(**{"shards": 3, "synthetic": RECIPE, **part}) for part in ({}, over))
    assert before == after if same else not set(before) & set(after)


def test_a_changed_right_factor_changes_every_shard(tmp_path):
    """It belongs to all products."""
    right = save(tmp_path / "b.npy", stack((3, 3), "float32"))
    over = {"synthetic": RECIPE, "right": str(right), "product": "A @ B", "shards": 3}
    before = set(keys(**over))
    os.utime(right, ns=(10**18, 10**18))
    assert not before & set(keys(**over))


A = stack((6, 3, 3), "float32")


@pytest.mark.parametrize(("parts", "shards", "reason"), [
    ([A], 5, ""), (list(A), 6, ""), (list(A), 5, "is 6 files, for 5 shards"),
    ([np.asfortranarray(A)], 5, "in another order"),
    ([A.astype(">f4")], 5, "in another order"),
    ([A[:2], np.asfortranarray(A[2:])], 5, "in/1.npy has its elements in another"),
])  # fmt: skip
def test_auto_copies_only_what_is_worth_it(parts, shards, reason, tmp_path, caplog):
    """The log says why the plan copies, or that it does not."""
    paths = [save(tmp_path / "in" / f"{i}.npy", part) for i, part in enumerate(parts)]
    path = str(paths[0] if len(parts) == 1 else tmp_path / "in")
    own = {"input": path, "shards": shards, "results": str(tmp_path / "r")}
    caplog.set_level("INFO")
    plan = planner.make(settings(**own, materialize="auto"))
    assert plan.settings.materialize == bool(reason)
    assert plan.facts.config["materialize"] == "auto"
    assert (reason or "reads the input in place") in caplog.text
    same = planner.make(settings(**own, materialize=bool(reason)))
    assert same.facts.digest == plan.facts.digest


def test_bytes_on_disk_are_foretold(tmp_path):
    """The plan states what it will write: input, copies and products, or the nodes of sums."""
    made = planner.make(settings(synthetic={"matrices": 5, "dim": 7, "dtype": "int8"}))
    assert [*made.written.values()] == [5 * 49, 5 * 49, 5 * 49 * 8]
    path = save(tmp_path / "a.npy", stack((5, 7, 7), "float32"))
    made = planner.make(settings(input=str(path), materialize=False, keep="sum", shards=2))
    assert [*made.written.values()] == [0, 0, (1 + 2) * 49 * 8]  # 0 to 1; 2 to 3, and 4


def test_what_lies_there_already_counts(tmp_path, monkeypatch):
    """A rerun on a nearly full disk needs only what is still missing."""
    made = planner.make(settings(results=str(tmp_path / "r"), synthetic={"dim": 64}))
    whole = sum(made.written.values())
    small.mark(made.results)
    made.results.synthetic.write_bytes(bytes(whole - 1024))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1024))
    planner.check_folder(made)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1023))
    with pytest.raises(InputError, match=r"1.0 KiB more \(of input .*, shards .*, products .*free"):
        planner.check_folder(made)


@pytest.mark.parametrize("name", ["products/00000.npy", "products/000/0000017.npy"])
def test_a_folder_of_a_version_without_keys_is_refused(tmp_path, name):
    """Even if a run of ours is said to have made it: nothing in it is overwritten."""
    made = planner.make(settings(results=str(tmp_path), synthetic={"dim": 8}))
    small.mark(made.results)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="have no keys in their names; choose another folder, or"):
        planner.check_folder(made)


NAMES = st.binary(min_size=1).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"\t")))


@example(["return\rin", "\r"])
@example(['quote"', "line\nend", '"'])
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_tables_round_trip(names):
    """Any name that a file can have is the same after a round trip."""
    rows = [Source(name, 3, 5, "7:11") for name in names]
    assert from_tsv(b"".join(to_tsv(rows, Source)), Source, Path("x")) == rows


def test_a_task_reads_its_own_files_from_the_list(tmp_path):
    """Whatever their names and numbers of matrices; a changed list is refused."""
    counts = [1 + i % 3 for i in range(23)]
    names = [tmp_path / f"{i:02}line\nend.npy" for i in range(23)]
    paths = [str(save(path, stack((n, 2, 2)))) for path, n in zip(names, counts, strict=True)]
    holds = np.repeat(paths, counts)  # the file of each matrix
    made = factories.plan(tmp_path, input=str(tmp_path / "*.npy"), shards=5)
    for row in made.shards.values():
        found = plan_file.between(plan_file.load(made.results.plan).sources, row.start, row.stop)
        assert [source.path for source in found] == sorted({*holds[row.start : row.stop]})
    path = made.results.sources
    path.write_bytes(path.read_bytes().replace(b"12line", b"1xline"))
    with pytest.raises(IntegrityError, match="does not match"):
        assert plan_file.load(made.results.plan).sources
