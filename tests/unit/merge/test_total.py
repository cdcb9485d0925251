"""`shardwise merge`: the tree over the sums of finished folders, or nothing at all."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.files.paths import Results
from shardwise.merge import total as merge
from shardwise.numerics.tree import TreeSum
from shardwise.observe import audit
from shardwise.plan import planner
from shardwise.records.locks import take_lock

from tests import factories


def finished(folder: Path, stack: np.ndarray | None = None, **over) -> str:
    """The results folder of a run on a stack; weights and labels are arrays."""
    for key in ("weights", "labels"):
        if over.get(key) is not None:
            over[key] = str(factories.save(folder / f"{key}.npy", over[key]))
    stack = factories.stack((3, 4, 4)) if stack is None else stack
    made = factories.listed(factories.plan(folder, stack, **over))
    factories.reduced(made)
    return str(made.results.root)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int16"])
@pytest.mark.parametrize("dim", [3, 400])  # one stripe, several
def test_the_total_is_the_tree_over_the_sums(tmp_path, dtype, dim):
    """In the order given, with the mean over all matrices."""
    make = factories.stack if dtype == "int16" else factories.noise
    stacks = [make((count, dim, dim), dtype, count) for count in (2, 1, 3)]
    folders = [finished(tmp_path / str(len(stack)), stack) for stack in stacks]
    assert merge.run(tmp_path / "total", folders) == 6
    sums = np.stack([np.load(f"{folder}/sum.npy") for folder in folders])
    tree = TreeSum(np, (dim, dim), sums.dtype.name)
    tree.add(sums, 0)
    total, mean = (np.load(tmp_path / "total" / f"{name}.npy") for name in ("sum", "mean"))
    assert total.dtype == sums.dtype
    np.testing.assert_array_equal(total, tree.values()[0])
    np.testing.assert_allclose(mean, total / 6, rtol=1e-15)


def test_sums_of_labels_are_merged_label_by_label(tmp_path):
    """Each has the bits of a merge of runs on that label alone; a folder may lack some."""
    stacks = [factories.noise((5, 3, 4), "float32", seed) for seed in range(3)]
    labels = [np.array(each) for each in (list("abbac"), list("ccccc"), list("bdbdb"))]
    runs = list(enumerate(zip(stacks, labels, strict=True)))
    folders = [
        finished(tmp_path / f"run{seed}", stack, product="A.T @ A", labels=own)
        for seed, (stack, own) in runs
    ]
    assert merge.run(tmp_path / "total", folders) == 15
    assert json.loads((tmp_path / "total" / "labels.json").read_text()) == {
        "labels": ["a", "b", "c", "d"], "matrices": [2, 5, 6, 2],
    }  # fmt: skip
    names = [".shardwise-merge", "labels.json", "summary.json", "sums.npy"]
    assert sorted(content(tmp_path / "total")) == names
    for label, total in zip("abcd", np.load(tmp_path / "total" / "sums.npy"), strict=True):
        alone = [
            finished(tmp_path / f"{label}{seed}", stack[own == label], product="A.T @ A")
            for seed, (stack, own) in runs
            if (own == label).any()
        ]
        merge.run(tmp_path / label, alone)
        np.testing.assert_array_equal(total, np.load(tmp_path / label / "sum.npy"))


def test_a_total_can_be_verified_and_an_interrupted_one_never_looks_finished(tmp_path, monkeypatch):
    """Each file that is not as it was merged is named, and the command printed makes it again."""
    labels, out = np.array(["b", "a", "b"]), tmp_path / "total"
    stacks = [factories.stack((3, 4, 4), seed=seed) for seed in (1, 2)]
    folders = [finished(tmp_path / str(i), each, labels=labels) for i, each in enumerate(stacks)]
    merge.run(out, folders)
    assert audit.look(out).line().startswith(f"{out}: whole: 2 folders, ")
    assert audit.look(out).line().endswith("sums.npy proven")
    for name, damage in (("sums.npy", factories.flip), ("labels.json", Path.unlink)):
        damage(out / name)
        found = audit.look(out)
        assert (found.code, list(found.damaged)) == (3, [name])
        words = shlex.split(found.line().partition("repair: ")[2])
        assert words[:2] == ["shardwise", "merge"]
        merge.run(Path(words[2]), words[3:])
        assert audit.look(out).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(merge, "commit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            merge.run(out, folders[::-1])
    assert (audit.look(out).code, (out / "summary.json").exists()) == (75, False)
    merge.run(out, folders)
    with pytest.raises(InputError, match="a total of several runs"):
        planner.plan_file.load(Results(out).plan)
    factories.flip(out / "summary.json")
    assert audit.look(out).code == 3


@pytest.mark.parametrize(
    ("weights", "results"), [([3, -1, 0], ["mean", "sum"]), ([1, -4], ["sum"])]
)
def test_means_are_divided_by_the_weights(tmp_path, weights, results):
    """A run without weights counts each matrix once; if all add up to 0, there is no mean."""
    plain, weighed = factories.stack((3, 4, 4)), factories.stack((len(weights), 4, 4), seed=1)
    own = finished(tmp_path / "w", weighed, weights=np.array(weights, "float64"))
    merge.run(tmp_path / "total", [finished(tmp_path / "plain", plain), own])
    expected = (plain @ plain).sum(0) + np.tensordot(weights, weighed @ weighed, 1)
    np.testing.assert_array_equal(np.load(tmp_path / "total" / "sum.npy"), expected)
    assert [path.stem for path in sorted((tmp_path / "total").glob("*.npy"))] == results
    if "mean" in results:
        mean = np.load(tmp_path / "total" / "mean.npy")
        np.testing.assert_allclose(mean, expected / (3 + sum(weights)), rtol=1e-15)


OF_ROWS = {"product": "A.H @ A", "covariance": True}


@pytest.mark.parametrize(("dtype", "weighted"), [
    ("float32", False), ("float32", True), ("complex64", True), ("int16", False),
])  # fmt: skip
def test_covariances_are_merged_as_of_all_rows(tmp_path, monkeypatch, dtype, weighted):
    """They are those of NumPy; that each folder has its own offset costs no digits."""
    make = factories.stack if dtype == "int16" else factories.noise
    counts = 2, 4, 3
    stacks = [make((n, 6, 3), dtype, n) + np.dtype(dtype).type(100 * n) for n in counts]
    weights = [np.arange(1.0, 1 + n) if weighted and n != 4 else None for n in counts]
    folders = [
        finished(tmp_path / str(len(stack)), stack, **OF_ROWS, weights=own)
        for stack, own in zip(stacks, weights, strict=True)
    ]
    merge.run(tmp_path / "total", [finished(tmp_path / "other")])  # is replaced
    assert merge.run(tmp_path / "total", folders) == 9
    names = ["correlation.npy", "covariance.npy", "row_mean.npy"]
    assert sorted(path.name for path in (tmp_path / "total").glob("*.npy")) == names
    assert json.loads((tmp_path / "total" / "summary.json").read_text())["rows"] == 54
    wide = np.concatenate(stacks).reshape(-1, 3)
    wide = wide.astype("complex128" if "complex" in dtype else "float64")
    own = [np.ones(n) if w is None else w for n, w in zip(counts, weights, strict=True)]
    every = np.repeat(np.concatenate(own), 6)
    expected = np.cov(wide, rowvar=False, aweights=every)
    alike, found, mean = (np.load(tmp_path / "total" / name) for name in names)
    assert found.dtype == expected.dtype
    limit = 1e-12 if dtype == "int16" else 3e-7
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * abs(expected).max())
    np.testing.assert_allclose(mean, np.average(wide, 0, every), rtol=limit)
    scale = np.sqrt(np.diag(expected).real)
    np.testing.assert_allclose(alike, expected / np.outer(scale, scale), rtol=limit, atol=limit)
    before = content(tmp_path / "total")
    monkeypatch.setattr(merge, "_NUMBERS", 6)  # two numbers of each at a time
    merge.run(tmp_path / "total", folders)
    assert content(tmp_path / "total") == before


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> str:
    """A finished folder, not to be changed."""
    return finished(tmp_path_factory.mktemp("first"))


def other(summary=None, **over):
    """A maker of another finished folder, whose summary says something else."""

    def make(folder: Path) -> list[str]:
        (folder / "mine.py").write_text("def f(xp, block):\n    return block\n")
        stack = factories.stack((2, 4, 4), seed=1)
        root = finished(folder / "other", **{"stack": stack, **over})
        factories.rewritten(Path(root, "summary.json"), **(summary or {}))
        return [root]

    return make


def twice(number: float):
    """A maker of two finished folders of the same number."""
    return lambda folder: [finished(folder / name, np.array([[[number]]])) for name in "ab"]


REFUSED = [
    # All that a product depends on, except the matrices, has to agree.
    ("digest of the function is", other(product="mine.py:f")),
    ("; dtype of the product is f", other(stack=factories.stack((3, 4, 4), "float64"))),
    (r"shape of A is \(5, 5\)", other(stack=factories.stack((2, 5, 5)))),
    ("backend is cupy, not numpy", other({"backend": "cupy"})),
    ("covariance is true, not false; ddof is 0", other(**OF_ROWS, ddof=0)),
    ("does not fit", twice(25 * 10**8)),
    ("the merged sum overflows", twice(1e154)),
]


@pytest.mark.parametrize(("told", "make"), REFUSED)
def test_what_does_not_add_up_is_refused(tmp_path, monkeypatch, first, told, make):
    """The message says what differs, or is too large; nothing is written."""
    monkeypatch.chdir(tmp_path)
    folders = make(tmp_path)
    with pytest.raises(InputError, match=told):
        merge.run(tmp_path / "total", folders if len(folders) > 1 else [first, *folders])
    assert not list((tmp_path / "total").glob("[!.]*"))


def test_a_folder_that_changes_meanwhile_is_refused(tmp_path, first):
    """The result of an earlier merge stays as it is."""
    (changing,), total = other()(tmp_path), tmp_path / "total"
    merge.run(total, [first])
    before = content(total)

    def named() -> Iterator[str]:
        yield from (first, changing)
        factories.flip(Path(changing, "sum.npy"))  # once all have been looked at

    with pytest.raises(IntegrityError, match=r"sum\.npy has checksum .* let it finish"):
        merge.run(total, named())
    assert content(total) == before


def test_a_merge_in_progress_is_left_alone(tmp_path, first):
    """What it left when it was killed is replaced by the next, and never by a run."""
    busy = Results(tmp_path / "total")
    with take_lock(busy.merging, ""), pytest.raises(TryAgain, match="another merge"):
        merge.run(busy.root, [first])
    merge.run(busy.root, [first])  # the folder of a merge that was killed
    assert sorted(content(busy.root)) == [".shardwise-merge", "mean.npy", "sum.npy", "summary.json"]
    with pytest.raises(InputError, match="which a run would replace"):
        planner.check_folder(planner.make(factories.settings(results=str(busy.root))))
