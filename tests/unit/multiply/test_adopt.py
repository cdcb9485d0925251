"""Products of matrices that have not changed are adopted under their new key, and no others."""

import os

import pytest
from shardwise.multiply import job
from shardwise.records.store import Store

from tests import factories
from tests.factories import noise, save
from tests.unit.plan.test_formats import CHUNKED

LEFT = noise((15, 20, 12), "float32")
OVER = {"product": "A.T @ A", "shard_bytes": 4 * 20 * 12 * 4}  # four matrices a shard
ALL = ["00000", "00001", "00002", "00003"]


def rerun(made):
    """Do what a run does; return the shards that were computed, not adopted."""
    missing = Store(made).missing()
    for shard in missing:
        job.run_shard(made, shard)
    return [shard for shard in missing if factories.receipt(made, shard).adopted is None]


def check_products(made, folder, left, right=None, **over):
    """The products of a plan have the bits of a fresh run."""
    fresh = factories.computed(factories.plan(folder / "fresh", left, right, **over))
    assert factories.products(made).tobytes() == factories.products(fresh).tobytes()


def in_files(folder, array):
    """A folder of 2-D files; existing files stay as they are."""
    for number in range(len([*folder.glob("in/*")]), len(array)):
        save(folder / "in" / f"{number:02}.npy", array[number])
    return folder / "in"


def in_stack(folder, array):
    """One file."""
    return save(folder / "input.npy", array)


@pytest.mark.parametrize(("make", "over"), [
    (in_stack, {"keep": "sum"}),
    *((make, {"materialize": "auto"}) for make in (in_stack, in_files, CHUNKED["hdf5, gzip"])),
])  # fmt: skip
def test_an_input_that_grows_computes_its_end(tmp_path, make, over):
    """Only the last shard, which was shorter, and new ones; all have the bits of a fresh run."""
    over = OVER | over
    assert rerun(factories.plan(tmp_path, input=str(make(tmp_path, LEFT[:10])), **over)) == ALL[:3]
    over["input"] = str(make(tmp_path, LEFT))
    made = factories.plan(tmp_path, **over)
    assert rerun(made) == ALL[2:]
    check_products(made, tmp_path, None, **over)


def changed(place):
    """The stack with a change of one matrix."""
    left = LEFT.copy()
    left[place, 0, 0] += 1
    return left


CHANGES = {
    "only the time": (LEFT, {}, []),
    "the middle": (changed(5), {}, ["00001"]),
    "the last": (changed(14), {}, ["00003"]),
    "a shorter file": (LEFT[:12], {}, []),
    "a shorter shard": (LEFT[:11], {}, ["00002"]),
    "swapped": (LEFT[[4, 1, 2, 3, 0, *range(5, 15)]], {}, ["00000", "00001"]),
    "other matrices": (-LEFT[::-1], {}, ALL),
    "dtype": (LEFT.astype("float64"), {"shard_bytes": 8 * 4 * 240}, ALL),
    "shape": (LEFT.reshape(15, 12, 20), {}, ALL),
    "product": (LEFT, {"product": "A @ A.T"}, ALL),
    "keep": (LEFT, {"keep": "sum"}, ALL),
    "proof": (LEFT, {"verify": False}, ALL),
    "cut": (LEFT, {"shards": 5}, [*ALL, "00004"]),
}


@pytest.mark.parametrize(("change", "materialize"), [
    ("the middle", True), ("swapped", True), *((change, False) for change in CHANGES),
])  # fmt: skip
def test_what_has_changed_is_computed(tmp_path, change, materialize):
    """Another byte, range, shape, element type or setting: no wrong product is adopted."""
    left, over, expected = CHANGES[change]
    over = OVER | {"materialize": materialize} | over
    rerun(factories.plan(tmp_path, LEFT, **OVER, materialize=materialize))
    made = factories.plan(tmp_path, left, **over)
    assert rerun(made) == expected
    check_products(made, tmp_path, left, **over)


@pytest.mark.parametrize("shared", [True, False])
def test_another_right_factor_computes_what_it_serves(tmp_path, shared):
    """All shards if one B serves them all, else the shard of the B that has changed."""
    right = noise((12, 4) if shared else (15, 12, 4), "float32", 1)
    over = OVER | {"product": "A @ B", "materialize": False}
    rerun(factories.plan(tmp_path, LEFT, right, **over))
    assert rerun(factories.plan(tmp_path, LEFT, right, **over)) == []
    right[5, 0] += 1
    made = factories.plan(tmp_path, LEFT, right, **over)
    assert rerun(made) == (ALL if shared else ["00001"])
    check_products(made, tmp_path, LEFT, right, **over)


@pytest.mark.parametrize("why", ["product", "receipt", "links"])
def test_what_cannot_be_adopted_is_computed(tmp_path, monkeypatch, why):
    """An earlier product or receipt that is damaged, or a disk without hard links."""
    made = factories.plan(tmp_path, LEFT, **OVER)
    rerun(made)
    if why == "links":
        monkeypatch.setattr(os, "link", lambda *words: os.readlink("/"))
    else:
        factories.flip(factories.file(made, why, "00001"), -2)
    made = factories.plan(tmp_path, LEFT, **OVER)
    assert rerun(made) == (ALL if why == "links" else ["00001"])
    assert not factories.leftovers(tmp_path)
    check_products(made, tmp_path, LEFT, **OVER)
