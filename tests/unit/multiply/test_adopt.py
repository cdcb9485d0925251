"""Products of matrices that have not changed are adopted under their new key, and no others."""

import os
import shutil

import numpy as np
import pytest
from shardwise.multiply import job
from shardwise.records import others
from shardwise.records.store import Store

from tests import factories
from tests.factories import noise, save
from tests.unit.plan.test_formats import CHUNKED

LEFT = noise((15, 20, 12), "float32")
OVER = {"product": "A.T @ A", "shard_bytes": 4 * 20 * 12 * 4}  # four matrices a shard


def rerun(made):
    """Do what a run does; return the shards that were computed, not adopted."""
    missing = Store(made).missing()
    for shard in missing:
        job.run_shard(made, shard)
    return [shard for shard in missing if factories.receipt(made, shard).adopted is None]


def in_files(folder, array):
    """A folder of 2-D files; existing files stay as they are."""
    for number, matrix in enumerate(array):
        if not (path := folder / "in" / f"{number:02}.npy").exists():
            save(path, matrix)
    return str(folder / "in")


def in_stack(folder, array):
    """One file."""
    return str(save(folder / "input.npy", array))


def in_store(folder, array):
    """A compressed HDF5 file, always written anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return CHUNKED["hdf5, gzip"](folder, array)


MAKERS = {"stack": in_stack, "folder": in_files, "store": in_store}


@pytest.mark.parametrize(("kind", "over"), [
    ("stack", {"keep": "sum"}), *((kind, {"materialize": "auto"}) for kind in MAKERS),
])  # fmt: skip
def test_an_input_that_grows_computes_its_end(tmp_path, kind, over):
    """Only the last shard, which was shorter, and new ones; all have the bits of a fresh run."""
    over, own = OVER | over, tmp_path / "own"
    made = factories.plan(tmp_path, input=MAKERS[kind](own, LEFT[:10]), **over)
    assert rerun(made) == ["00000", "00001", "00002"]
    made = factories.plan(tmp_path, input=MAKERS[kind](own, LEFT), **over)
    said = others.reusable(made, Store(made).missing())
    assert said.partition(" an ")[0] == ("3 of these have" if kind in ("stack", "store") else "")
    assert rerun(made) == ["00002", "00003"]
    fresh = factories.plan(tmp_path / "fresh", LEFT, **over)
    expected = factories.products(factories.computed(fresh))
    assert factories.products(made).tobytes() == expected.tobytes()
    np.save(tmp_path / "w.npy", np.arange(1.0, 16.0))
    for change in ({"product": "A @ A.T"}, {"keep": "sum", "weights": str(tmp_path / "w.npy")}):
        other = factories.plan(tmp_path, input=MAKERS[kind](own, LEFT), **over | change)
        assert not others.reusable(other, Store(other).missing())


def test_earlier_products_are_announced_also_among_those_of_other_configs(tmp_path):
    """A shard may have several receipts: any of them counts, whatever its key."""
    over = OVER | {"input": in_stack(tmp_path, LEFT[:10])}
    for keep in ("products", "sum"):
        rerun(factories.plan(tmp_path, keep=keep, **over))
    in_stack(tmp_path, LEFT)
    for keep in ("products", "sum"):
        made = factories.plan(tmp_path, keep=keep, **over)
        assert others.reusable(made, Store(made).missing()).startswith("3 of these have")


def with_matrix(number):
    """A change of one matrix."""

    def change(left):
        left[number, 0, 0] += 1
        return left

    return change


ALL = ["00000", "00001", "00002", "00003"]
CHANGES = {
    "only the time": (lambda left: left, {}, []),
    "the middle": (with_matrix(5), {}, ["00001"]),
    "the last": (with_matrix(14), {}, ["00003"]),
    "a shorter file": (lambda left: left[:12], {}, []),
    "a shorter shard": (lambda left: left[:11], {}, ["00002"]),
    "swapped": (lambda left: left[[4, 1, 2, 3, 0, *range(5, 15)]], {}, ["00000", "00001"]),
    "other matrices": (lambda left: -left[::-1], {}, ALL),
    "dtype": (lambda left: left.astype("float64"), {"shard_bytes": 8 * 4 * 240}, ALL),
    "shape": (lambda left: left.reshape(15, 12, 20), {}, ALL),
    "product": (lambda left: left, {"product": "A @ A.T"}, ALL),
    "keep": (lambda left: left, {"keep": "sum"}, ALL),
    "proof": (lambda left: left, {"verify": False}, ALL),
    "cut": (lambda left: left, {"shards": 5}, [*ALL, "00004"]),
}


@pytest.mark.parametrize(("change", "materialize"), [
    ("the middle", True), ("swapped", True), *((change, False) for change in CHANGES),
])  # fmt: skip
def test_what_has_changed_is_computed(tmp_path, change, materialize):
    """Another byte, range, shape, element type or setting: no wrong product is adopted."""
    make, over, expected = CHANGES[change]
    over = OVER | {"materialize": materialize} | over
    rerun(factories.plan(tmp_path, LEFT, **OVER, materialize=materialize))
    left = make(LEFT.copy())
    made = factories.plan(tmp_path, left, **over)
    assert rerun(made) == expected
    fresh = factories.computed(factories.plan(tmp_path / "fresh", left, **over))
    assert factories.products(made).tobytes() == factories.products(fresh).tobytes()


@pytest.mark.parametrize("shared", [True, False])
def test_another_right_factor_computes_what_it_serves(tmp_path, shared):
    """All shards if one B serves them all, else the shard of the B that has changed."""
    left, right = LEFT, noise((12, 4) if shared else (15, 12, 4), "float32", 1)
    over = OVER | {"product": "A @ B", "materialize": False}
    rerun(factories.plan(tmp_path, left, right, **over))
    assert rerun(factories.plan(tmp_path, left, right, **over)) == []
    right[5, 0] += 1
    made = factories.plan(tmp_path, left, right, **over)
    assert rerun(made) == (ALL if shared else ["00001"])
    np.testing.assert_array_equal(factories.products(made), factories.multiplied(made, left, right))


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
    np.testing.assert_array_equal(factories.products(made), factories.multiplied(made, LEFT))
