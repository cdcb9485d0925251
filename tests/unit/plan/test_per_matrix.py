"""Weights and labels of matrices: what they do to sums, keys and plans."""

import json
import math
from collections import Counter

import hypothesis
import numpy as np
import pytest
import shardwise
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.numerics.tree import TreeSum
from shardwise.plan import memory, per_matrix, planner
from shardwise.records import receipts
from shardwise.records.receipts import SumReceipt

from tests import factories
from tests.factories import FLOATS, flip, listed, multiplied, noise, reduced, save, wide
from tests.unit.numerics.test_tree import defined

KEEPS = ("products", "sum")


def weighted(folder, left, weights, **over):
    """A plan of matrices with weights."""
    return factories.plan(folder, left, weights=str(save(folder / "w.npy", weights)), **over)


@hypothesis.settings(max_examples=20)
@given(st.sampled_from(FLOATS), st.integers(1, 12), st.data())
def test_a_sum_is_that_of_weight_times_product(tmp_path_factory, dtype, n, data):
    """To the bit, for any cut, both keeps, copied or in place; a matrix of weight 0 may be NaN."""
    folder, left = tmp_path_factory.mktemp("a"), noise((n, 3, 3), dtype, n)
    numbers = st.lists(st.sampled_from([0, 0.1, -3, 1e5]), min_size=n, max_size=n)
    weights = np.array(data.draw(numbers))
    left[weights == 0] = np.nan
    keep, names = data.draw(st.sampled_from(KEEPS)), ["sum", "mean"][: 1 + bool(weights.sum())]
    over = {"shards": data.draw(st.integers(1, n)), "materialize": data.draw(st.booleans())}
    made = listed(weighted(folder, left, weights, keep=keep, **over))
    total, own = reduced(made, *names), wide(multiplied(made, np.nan_to_num(left)))
    expected = defined(weights[:, None, None] * own)
    np.testing.assert_array_equal(total, expected)
    if "mean" in names:
        mean = np.load(made.results.statistic("mean")).view("float64")
        np.testing.assert_array_equal(mean, expected.view("float64") / math.fsum(weights))
    if keep == "products":
        assert not factories.products(made)[weights == 0].any()


@pytest.mark.parametrize("keep", KEEPS)
def test_other_weights_compute_the_shards_that_they_touch(tmp_path, keep):
    """Those shards adopt no product; the same weights in another file change nothing."""
    left, weights, others = noise((6, 3, 3)), np.arange(6.0), np.array([0, 1, 2, 4, 4, 5.0])
    over = {"shards": 3, "keep": keep, "materialize": False}
    made = listed(weighted(tmp_path, left, weights, **over))
    over["input"] = str(tmp_path / "input.npy")
    assert weighted(tmp_path, None, weights.astype("int8"), **over).shards == made.shards
    other = listed(weighted(tmp_path, None, others, **over))
    before, after = ([row.key for row in each.shards.values()] for each in (made, other))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert factories.receipt(other, "00001").adopted is None
    np.testing.assert_allclose(reduced(other), np.tensordot(others, left @ left, 1))


def test_a_function_meets_no_matrix_of_weight_0(tmp_path):
    """Neither in the trial nor in a batch; it is not called if all matrices have weight 0."""
    own = tmp_path / "own.py"
    own.write_text("def f(xp, block):\n    return xp.linalg.inv(block)\n")
    left, weights = noise((6, 3, 3)) + 5 * np.eye(3), np.array([0, 0, 1, 0, -2, 1.0])
    left[weights == 0] = 0  # which has no inverse
    over = {"product": f"{own}:f", "shards": 3, "keep": "sum"}
    found = reduced(listed(weighted(tmp_path, left, weights, **over)))
    expected = np.tensordot(weights[[2, 4, 5]], np.linalg.inv(left[[2, 4, 5]]), 1)
    np.testing.assert_allclose(found, expected)


def test_a_plan_keeps_the_weights_it_was_made_with(tmp_path):
    """The user's file may go; a damaged copy is refused."""
    made = weighted(tmp_path, noise((4, 3, 3)), np.arange(4) % 2 == 1, shards=2)
    (tmp_path / "w.npy").unlink()
    assert planner.read_planned(made.results.plan).per_matrix.total_weight == 2
    flip(made.results.weights)
    with pytest.raises(IntegrityError, match=r"weights.npy: it does not match its plan.json"):
        planner.read_planned(made.results.plan)


def labelled(folder, left, labels, **over):
    """A plan of matrices with labels."""
    return factories.plan(folder, left, labels=str(save(folder / "l.npy", labels)), **over)


def sums(made, ranks=1):
    """The sums of a listed plan, from this many ranks."""
    if ranks == 1:
        return reduced(made)
    done = factories.mpirun(ranks, made)
    assert done.returncode == 0, done.stderr
    return np.load(made.results.statistic("sums"))


@hypothesis.settings(max_examples=12)
@given(st.sampled_from([*FLOATS, "int16"]), st.integers(1, 20), st.data())
def test_the_sum_of_a_label_is_that_of_a_run_on_its_matrices(tmp_path_factory, dtype, n, data):
    """To the bit, for any cut and both keeps, also with weights; all from one read."""
    folder, weigh = tmp_path_factory.mktemp("a"), dtype != "int16" and data.draw(st.booleans())
    left, weights = (10 * noise((n, 3, 3), "float64", n)).astype(dtype), noise((n,))
    names = st.lists(st.sampled_from(["a", "b", "zz"]), min_size=n, max_size=n)
    labels, over = np.array(data.draw(names)), {"keep": data.draw(st.sampled_from(KEEPS))}
    if weigh:
        over["weights"] = str(save(folder / "w.npy", weights))
    made = labelled(folder, left, labels, shards=data.draw(st.integers(1, n)), **over)
    found, run = sums(listed(made)), shardwise.open(made.results.root)
    assert run.labels == Counter(labels.tolist())
    assert run.verify().verdict == "whole"
    for label, own in zip(run.labels, found, strict=True):
        save(folder / "w.npy", weights[labels == label])
        alone = listed(factories.plan(folder / label, left[labels == label], **over))
        assert reduced(alone).tobytes() == own.tobytes()


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("dim", [4, 800])
def test_ranks_share_the_sums_of_labels(tmp_path, keep, dim):
    """Stripes of large matrices, rows of small ones: the same bits as from one rank."""
    labels = np.array([3, -1, 3, 3, 70, -1, 3])
    made = listed(labelled(tmp_path, noise((7, dim, dim)), labels, keep=keep, shards=3))
    assert sums(made, 3).tobytes() == sums(made).tobytes()
    facts = receipts.read(made.results.summary, SumReceipt).files["sums"]
    receipts.check_elements(made.results.statistic("sums"), facts)
    assert json.loads(made.results.label_names.read_bytes()) == {
        "labels": [-1, 3, 70], "matrices": [2, 4, 1]
    }  # fmt: skip


@pytest.mark.parametrize(("cells", "names"), [
    (["7", "10", "7"], [7, 10]), (["s7", "10", " s7 "], ["10", "s7"]),
    (["007", "7", "007"], ["007", "7"]),
])  # fmt: skip
def test_labels_are_a_column_of_the_sheet(tmp_path, cells, names):
    """If all cells are plain whole numbers, they sort as numbers; a row labels its whole file."""
    paths = [save(tmp_path / f"{i}.npy", noise((i + 1, 3, 3))) for i in range(3)]
    rows = [f"{path}\t{cell}" for path, cell in zip(paths, cells, strict=True)]
    (tmp_path / "sheet.tsv").write_text("\n".join(["path\tscan", *rows]))
    made = factories.plan(tmp_path, input=str(tmp_path / "sheet.tsv"), labels="column:scan")
    assert made.facts.labels == names
    assert sorted(made.facts.label_counts) == [2, 4]


def test_labels_are_counted_over_many_blocks():
    """For any run of matrices: their places among all matrices of the same label."""
    labels = np.random.default_rng(0).integers(0, 3, 3 * per_matrix._BLOCK + 7).astype("u1")
    said = per_matrix.PerMatrix(labels=labels, names=("a", "b", "c"))
    assert said.counts == np.bincount(labels).tolist()
    low, high = per_matrix._BLOCK + 5, 3 * per_matrix._BLOCK - 1
    before, behind = (np.bincount(labels[:place]).tolist() for place in (low, high))
    assert said.spans(range(low, high)) == [(i, range(before[i], behind[i])) for i in range(3)]


def test_a_stack_that_grows_keeps_the_shards_of_its_labels(tmp_path):
    """A new label that sorts before the others changes no shard without this label."""
    left, labels = noise((6, 3, 3)), np.array(["b", "c", "c", "b", "a", "b"])
    over = {"keep": "sum", "shard_bytes": 2 * 72, "materialize": False}
    made = listed(labelled(tmp_path, left[:4], labels[:4], **over))
    before = sums(made)
    grown = listed(labelled(tmp_path, left, labels, **over))
    assert made.facts.labels == ["b", "c"]
    assert grown.facts.labels == ["a", "b", "c"]
    adopted = [factories.receipt(grown, shard).adopted for shard in grown.shards]
    assert [bool(name) for name in adopted] == [True, True, False]
    assert sums(grown)[2].tobytes() == before[1].tobytes()


def test_what_decides_the_nodes_of_a_shard_is_in_its_key():
    """The shard's labels, and how many of each came before; product files depend on none."""
    keys = {
        per_matrix.PerMatrix(None, np.array(labels, "u1"), names).digest(range(2, 4), "sum")
        for labels, names in (
            ([0, 1, 1, 0], ("b", "c")), ([1, 1, 1, 0], ("b", "c")), ([0, 1, 0, 1], ("b", "c")),
            ([0, 1, 1, 0], ("b", "d")),
        )
    }  # fmt: skip
    assert len(keys) == 4
    said = per_matrix.PerMatrix(None, np.zeros(4, "u1"), ("b",))
    assert said.digest(range(4), "products") is None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_the_trees_of_all_labels_hold_no_more_than_is_planned(labels, data):
    """Whatever the batches, and where the shard begins."""
    said = per_matrix.PerMatrix(None, np.array(labels, "u1"), tuple(range(6)))
    start = data.draw(st.integers(0, len(labels) - 1))
    run, batch = range(start, len(labels)), data.draw(st.integers(1, 20))
    most = memory.Budget(None, None, [own for _, own in said.spans(run)]).nodes
    total = TreeSum(np, (1, 1), "float64", said, most)
    for low in run[::batch]:
        total.add(np.ones((min(batch, run.stop - low), 1, 1)), low)
    nodes = total.take()
    assert len(nodes) + len(total._spare) == most
    assert sum(float(node[0, 0]) for node in nodes) == len(run)
    assert len(nodes) == len(said.keys(run))
