"""From a config to a plan: what it checks, and which shards a change computes again."""

import os
import shutil
import tempfile
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.plan import plan, planner, sources
from shardwise.plan.plan import Written

from tests import factories
from tests.factories import computed, save, settings, stack


def keys(**over):
    """The keys of a config's plan, in order."""
    made = planner.make(settings(**over))
    return [row.key for row in made.shards.values()]


@pytest.fixture
def folder(tmp_path):
    """A folder of six matrices with old time stamps."""
    for i in range(6):
        path = save(tmp_path / "in" / f"{i}.npy", stack((3, 3), seed=i))
        os.utime(path, ns=(10**18, 10**18))
    return tmp_path / "in"


RECIPE = {"matrices": 6, "dim": 3, "dtype": "float32", "seed": 0}


@pytest.mark.parametrize(
    "over",
    [
        *({"product": "A.T @ A"}, {"keep": "sum"}, {"backend": "auto"}, {"verify": False}),
        {"shards": 2},
        *({"synthetic": RECIPE | part} for part in ({"matrices": 7}, {"dim": 4}, {"seed": 1})),
        {"synthetic": RECIPE | {"dtype": "float64"}},
    ],
    ids=str,
)
def test_what_changes_products_changes_every_key(folder, over):
    """What products, proofs or the cut depend on computes all shards again."""
    own = {"synthetic": RECIPE} if "synthetic" in over else {"input": str(folder)}
    before, after = (keys(**{"shards": 3, **own, **part}) for part in ({}, over))
    assert not set(before) & set(after)


@pytest.mark.parametrize(
    "over",
    [{"reduce": {"ranks": 7}}, {"reduce": {"statistics": ["mean"]}}, {"materialize": False},
     {"shard_bytes": 1}, {"synthetic": {"dim": 3}}, {"results": "elsewhere"}],
    ids=str,
)  # fmt: skip
def test_what_leaves_products_alone_changes_no_key(folder, over):
    """A setting that no product depends on computes nothing again."""
    before = keys(input=str(folder), shards=3)
    assert keys(**{"input": str(folder), "shards": 3, **over}) == before


def test_the_dtype_of_what_a_function_returns_decides_on_extremes(tmp_path):
    """A function that makes real products of complex matrices has extremes; the other way not."""
    file = tmp_path / "mine.py"
    file.write_text(
        "def real(xp, block):\n    return xp.abs(block)\n"
        "def complex(xp, block):\n    return block + 1j\n"
    )
    path = str(save(tmp_path / "a.npy", stack((2, 3, 3), "complex64")))
    chosen = {"statistics": ["max"]}
    planner.make(settings(input=path, reduce=chosen, product=f"{file}:real"))
    save(tmp_path / "a.npy", stack((2, 3, 3), "float32"))
    with pytest.raises(InputError, match="statistics: max: the products are complex64"):
        planner.make(settings(input=path, reduce=chosen, product=f"{file}:complex"))


@pytest.mark.parametrize("name", ["a.npy", "b.npy"])
def test_a_changed_stack_or_right_factor_changes_every_shard(tmp_path, name):
    """In one file nobody knows which matrices changed, and B belongs to all products."""
    left = save(tmp_path / "a.npy", stack((6, 3, 3)))
    right = save(tmp_path / "b.npy", stack((3, 3)))
    over = {"input": str(left), "right": str(right), "product": "A @ B", "shards": 3}
    before = keys(**over)
    os.utime(tmp_path / name, ns=(10**18, 10**18))
    assert not set(before) & set(keys(**over))


def test_keys_are_those_of_earlier_releases(monkeypatch):
    """Other digits in the names of files would compute everything that users have again."""
    versions = {"synthesize": 2, "shard": 4, "multiply": 7, "reduce": 7}
    monkeypatch.setattr(plan, "ALGORITHM", versions)
    monkeypatch.setattr(planner, "ALGORITHM", versions)
    monkeypatch.setattr(sources, "ALGORITHM", versions)
    recipe = {"matrices": 10, "dim": 4, "dtype": "float32", "seed": 0}
    copies = ["51fed87127ad", "7ed14abd706b"]
    for over, products, digest, key in (
        ({}, ["69a588e4b423", "4087dc76e914"], "3cc0c53b866687ba", "1e631b5aa227"),
        ({"keep": "sum", "backend": "cupy", "precision": "tf32"},
         ["acf3d779524f", "a26d9c56a058"], "c3c3398f2fb4fd80", "3d6ae6062db8"),
    ):  # fmt: skip
        made = planner.make(settings(synthetic=recipe, shards=2, **over))
        assert [row.input_key for row in made.shards.values()] == copies
        assert [row.key for row in made.shards.values()] == products
        assert (made.facts.digest, made.key) == (digest, key)
        assert made.synthetic_receipt.name == "input-8d8942dc4061.json"


@pytest.fixture(
    params=["one file", "a file per shard", "many files", "Fortran", "big-endian", "one of two"]
)
def layout(request, tmp_path):
    """How an input lies on the disk, where it is, and why a copy costs less; empty: it does not."""
    array, path = stack((6, 3, 3), "float32"), tmp_path / "a.npy"
    if request.param == "one of two":  # files, the second of which is in another order
        save(tmp_path / "two" / "0.npy", array[:2])
        save(tmp_path / "two" / "1.npy", np.asfortranarray(array[2:]))
        return str(tmp_path / "two"), 5, "two/1.npy are in another order"
    if request.param in ("a file per shard", "many files"):
        for number, matrix in enumerate(array):
            save(tmp_path / "six" / f"{number}.npy", matrix)
        few = request.param == "a file per shard"
        return str(tmp_path / "six"), 6 if few else 5, "" if few else "is 6 files, for 5 shards"
    layouts = {"one file": array, "Fortran": np.asfortranarray(array),
               "big-endian": array.astype(">f4")}  # fmt: skip
    reason = "" if request.param == "one file" else "are in another order"
    return str(save(path, layouts[request.param])), 5, reason


def test_auto_copies_only_what_is_worth_it(layout, tmp_path, caplog):
    """And it says why, or that it does not."""
    path, shards, reason = layout
    own = {"input": path, "shards": shards, "results": str(tmp_path / "r")}
    caplog.set_level("INFO")
    plan = planner.make(settings(**own, materialize="auto"))
    assert plan.settings.materialize == bool(reason)
    assert plan.facts.config["materialize"] == "auto"
    assert (reason or "reads the input in place") in caplog.text
    same = planner.make(settings(**own, materialize=bool(reason)))
    assert same.facts.digest == plan.facts.digest


def test_auto_copies_from_a_file_system_that_nodes_may_not_share(tmp_path):
    """Tasks see the file system of the results for certain, and no other."""
    path = str(save(tmp_path / "a.npy", stack((6, 3, 3))))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert os.stat(other).st_dev != os.stat(path).st_dev
        plan = planner.make(settings(input=path, results=f"{other}/r", materialize="auto"))
    assert plan.settings.materialize


def test_bytes_on_disk_are_foretold(tmp_path):
    """The plan states what it will write: input, copies and products, or the nodes of sums."""
    recipe = {"matrices": 5, "dim": 7, "dtype": "int8"}
    made = planner.make(settings(synthetic=recipe))
    assert made.facts.bytes == Written(5 * 49, 5 * 49, 5 * 49 * 8)
    path = save(tmp_path / "a.npy", stack((5, 7, 7), "float32"))
    over = {"input": str(path), "materialize": False, "keep": "sum", "shards": 2}
    made = planner.make(settings(**over))
    assert made.facts.bytes == Written(0, 0, (1 + 2) * 49 * 8)  # 0 to 1; 2 to 3, and 4
    made = planner.make(settings(synthetic=recipe, keep="sum", shards=3))
    assert made.facts.bytes.products == (1 + 2 + 2) * 49 * 8


def test_what_lies_there_already_counts(tmp_path, monkeypatch):
    """A rerun on a nearly full disk needs only what is still missing."""
    made = planner.make(settings(results=str(tmp_path / "r"), synthetic={"dim": 64}))
    whole = sum(astuple(made.facts.bytes))
    small.mark(made.results)
    made.results.synthetic.write_bytes(bytes(whole - 1024))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1024))
    planner.check_folder(made)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1023))
    with pytest.raises(InputError, match="free"):
        planner.check_folder(made)


@pytest.mark.parametrize("name", ["file/r", "link", "loop/r", "/proc/nothing"])
def test_results_that_cannot_be_made_are_refused(tmp_path, name):
    """A results folder that cannot become one is bad config."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="results: "):
        planner.check_folder(planner.make(settings(results=str(tmp_path / name))))


def test_results_whose_paths_would_be_too_long_are_refused(tmp_path, monkeypatch):
    """A name below a folder that is not there yet; a path; Snakemake's record of one; from deep."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cannot be used: File name too long"):
        planner.make(settings(results="new/" + "r" * 300))
    for name in ("r/" * 1949, ("d" * 99 + "/") * 30):
        with pytest.raises(InputError, match=r"is too long: .* [45]\d\d\d bytes, .* allows 4095"):
            planner.make(settings(results=f"{name}r"))
    over = {"synthetic": {"matrices": 2, "dim": 4}, "shards": 2}
    long = ("d" * 99 + "/") * 28 + "e"
    assert computed(factories.plan(tmp_path, results=long, **over)).shards
    for _ in range(75):
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    with pytest.raises(InputError, match="'results' is too long"):
        planner.make(settings(results="results", **over))


@pytest.mark.parametrize("change", [None, "input", "right", "function"])
def test_a_plan_is_committed_only_for_the_input_that_it_was_made_of(tmp_path, monkeypatch, change):
    """The main process makes the plan; the job writes that one, or says which file has changed."""
    monkeypatch.chdir(tmp_path)
    paths = {"input": save(Path("a.npy"), stack((6, 3, 3))), "function": Path("mine.py")}
    paths["function"].write_text("def f(xp, block):\n    return block\n")
    over = {"product": "mine.py:f"}
    if change == "right":
        paths["right"] = save(Path("b.npy"), stack((3, 3)))
        over = {"right": "b.npy", "product": "A @ B"}
    made = planner.make(settings(input="a.npy", results="r", shards=3, **over))
    aside = Results(Path("aside"))
    planner.write(replace(made, results=aside))
    if change:
        paths[change].write_bytes(paths[change].read_bytes() + b"\n")
    words = ("--planned", aside.plan, "--digest", made.facts.digest)
    done = factories.run("plan", *words, cwd=tmp_path)
    assert done.returncode == (3 if change else 0), done.stderr
    if change:
        assert f"{paths[change]} has changed since the plan was made" in done.stderr
        assert not made.results.root.exists()
    else:
        committed = plan.load(made.results.plan)
        assert (committed.shards, tuple(committed.sources)) == (made.shards, made.sources)
        assert committed.facts.digest == made.facts.digest
