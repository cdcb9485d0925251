"""The ledger and the reduce: the right sum from any number of ranks, or no sum at all."""

import shutil

import numpy as np
import pytest
from shardwise.errors import InputError, IntegrityError
from shardwise.files import pieces
from shardwise.numerics.tree import TreeSum
from shardwise.plan import memory, plan
from shardwise.records import ledger, receipts
from shardwise.records.receipts import SumReceipt
from shardwise.records.store import Store
from shardwise.reduce.results import ResultFiles

from tests import factories
from tests.factories import leftovers, listed, mpirun, noise, reduced, stack


def nothing_summed(made):
    """Whether the results folder holds no result and no temporary file of a reduce."""
    names = {path.name for path in made.results.root.iterdir()}
    return not names & {"sum.npy", "mean.npy", "summary.json"} and not leftovers(made.results.root)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A plan of seven matrices in three shards, computed."""
    return listed(factories.plan(tmp_path_factory.mktemp("whole"), stack((7, 4, 4)), shards=3))


@pytest.fixture
def made(whole, tmp_path):
    """A copy of the computed plan, to damage."""
    shutil.copytree(whole.results.root, tmp_path / "results")
    return plan.load(tmp_path / "results" / "plan.tsv")


@pytest.mark.parametrize(
    ("keep", "dtype"),
    [("sum", "float16"), ("sum", "float64"), ("sum", "complex64"),
     ("products", "float32"), ("products", "complex64"), ("products", "int16")],
)  # fmt: skip
def test_sums_have_the_same_bits_however_they_come_about(tmp_path, monkeypatch, keep, dtype):
    """For any shards, batches and stripes it is the tree over the products as written."""
    left, seen = noise((11, 3, 4), dtype), set()
    for shards, size, piece in (1, 10**6, 2**20), (3, 70, 16), (11, 1, 48), (2, 40, 2**20):
        monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", piece)
        monkeypatch.setattr(memory, "HOST_BATCH_BYTES", size)
        over = {"keep": keep, "shards": shards, "materialize": False, "product": "A.T @ A"}
        made = listed(factories.plan(tmp_path / str(shards), left, **over))
        found = reduced(made)
        assert found.dtype == made.problem.sum_dtype
        said = receipts.read(made.results.summary, SumReceipt).files["sum"]
        receipts.check_elements(made.results.statistic("sum"), said)
        seen.add(found.tobytes())
    over = {"keep": "products", "shards": 1, "materialize": False, "product": "A.T @ A"}
    products = factories.products(factories.computed(factories.plan(tmp_path / "p", left, **over)))
    expected = TreeSum(np, products.shape[1:], products.dtype.name)
    expected.add(products, 0)
    assert seen == {expected.values()[0].tobytes()}


@pytest.mark.parametrize(("keep", "ranks"), [("products", 1), ("products", 3), ("sum", 2)])
def test_integers_whose_sum_does_not_fit_are_refused(tmp_path, keep, ranks):
    """Whichever rank forms the node that does not fit."""
    left = np.full((3, 1, 1), 2**31, "int64")
    made = listed(factories.plan(tmp_path, left, keep=keep, shards=3, materialize=False))
    done = mpirun(ranks, made)
    assert done.returncode == 2, done.stderr
    assert "the sum of the integer products does not fit int64" in done.stderr
    assert nothing_summed(made)


def test_other_ranks_than_asked_are_refused(made):
    """A launcher that starts another number of ranks is a config error on every rank."""
    done = mpirun(2, made, "--ranks", 3)
    assert done.returncode == 2
    assert "reduce: asked for 3 ranks, but MPI has 2: the launcher does not match" in done.stderr
    assert "see the line 'mpi' of the profile" in done.stderr
    assert nothing_summed(made)


DAMAGE = {
    "product flipped": lambda product, _: factories.flip(product),
    "other backend": lambda _, receipt: factories.rewritten(receipt, backend="cupy"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_the_reduce_refuses_and_leaves_no_sum(made, how):
    """Damage after the ledger was written ends all ranks with 3; one error names the repair."""
    DAMAGE[how](*(factories.file(made, kind, "00001") for kind in ("product", "receipt")))
    done = factories.run("reduce", "--plan", made.results.plan, "--ranks", 2)
    assert done.returncode == 3, done.stderr
    assert "00001" in done.stderr
    cure = "set backend: numpy or backend: cupy" if how == "other backend" else "rm -f "
    assert cure in done.stderr
    assert "start the run again" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("ERROR") == 1
    assert "abort" not in done.stderr.lower()
    assert nothing_summed(made)


def test_all_shards_are_named_whichever_rank_judges_them(made):
    """Each rank judges a part of the receipts; one error names all shards that are refused."""
    for shard in ("00000", "00002"):
        factories.flip(factories.file(made, "receipt", shard))
    done = mpirun(3, made)
    assert done.returncode == 3, done.stderr
    assert "2 of 3 shards cannot be summed" in done.stderr
    names = ",".join(made.shards[shard].name for shard in ("00000", "00002"))
    assert f"/products/{{{names}}}.json" in done.stderr
    assert nothing_summed(made)


@pytest.mark.parametrize("key", ["attempt", "finished", "node"])
def test_a_ledger_has_no_cell_without_bounds(made, key):
    """A value that is too long for any table is refused, and its receipt named."""
    factories.rewritten(
        factories.file(made, "receipt", "00001"), **{key: "9" * 1000 if key == "node" else 10**400}
    )
    with pytest.raises(IntegrityError, match=r"00001-\w+\.json is damaged") as caught:
        ledger.write(made)
    assert len(str(caught.value)) < 1000


def test_the_ledger_has_a_row_a_shard(made):
    """Rows stand in the plan's order, with ranges, checksums and who computed them."""
    rows = [line.split("\t") for line in made.results.ledger.read_text().splitlines()]
    assert [row[0] for row in rows[1:]] == ["00000", "00001", "00002"]
    assert [row[1:4] for row in rows[1:]] == [["0", "2", "2"], ["2", "4", "2"], ["4", "7", "3"]]
    assert {row[rows[0].index("backend")] for row in rows[1:]} == {"numpy"}


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}])
def test_a_sum_that_overflows_is_refused(tmp_path, over):
    """Products that fit, but whose sum does not, end with 2 and leave no sum."""
    left = np.zeros((3, 2, 2))
    left[:, 1, 1] = 1.2e154  # the square of one fits float64, the sum of three squares does not
    made = listed(factories.plan(tmp_path, left, shards=3, materialize=False, **over))
    with pytest.raises(InputError, match=r"the sum overflows float64 at element \[1, 1\]") as told:
        reduced(made)
    assert "is finite" in str(told.value) or "all products are finite there" in str(told.value)
    assert nothing_summed(made)


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}])
def test_products_that_were_allowed_to_be_nan_are_traced(tmp_path, over):
    """The message has the shard or matrix, and the file, row and column of the input."""
    for i in range(6):
        matrix = factories.stack((4, 4), seed=i)
        matrix[2, 1] = np.nan if i == 3 else 1
        factories.save(tmp_path / "in" / f"{i}.npy", matrix)
    over |= {"input": str(tmp_path / "in"), "shards": 3, "materialize": False}
    made = listed(factories.plan(tmp_path, nonfinite="allow", **over))
    made = factories.plan(tmp_path, **over)  # the same products
    ledger.write(made)
    with pytest.raises(InputError) as caught:
        reduced(made)
    told = str(caught.value)
    what = "the sum of shard 00001" if "keep" in over else "the product of matrix 3"
    assert f"the sum is nan at element [0, 1]: so is {what}, which was computed" in told
    place = f"input: nan at row 2, column 1 of {tmp_path}/in/3.npy (counted from 0)"
    assert place in told
    assert nothing_summed(made)


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}])
def test_allowed_nonfinite_numbers_reach_the_sum(tmp_path, over):
    """nonfinite: allow sums as IEEE 754 says: NaN, Inf, and NaN from Inf - Inf."""
    left, right = np.zeros((3, 5, 1)), np.ones((3, 1, 1))
    left[:, :, 0] = [[1, np.nan, np.inf, np.inf, 1], [2, 3, 4, 5, 6], [3, 1, 1, -np.inf, -np.inf]]
    over = {"product": "A @ B", "shards": 2, "nonfinite": "allow", "materialize": False, **over}
    made = listed(factories.plan(tmp_path, left, right, **over))
    expected = [6, np.nan, np.inf, np.nan, -np.inf]
    np.testing.assert_array_equal(reduced(made)[:, 0], expected)


def test_ranks_find_the_covariance_of_one(tmp_path):
    """Two ranks take one stripe each, three share both; the sums of columns are the last row."""
    left = noise((9, 6, 370))
    over = {"product": "A.T @ A", "covariance": True, "shards": 2, "keep": "sum"}
    made, seen = listed(factories.plan(tmp_path, left, **over)), set()
    for ranks in (1, 2, 3):
        assert mpirun(ranks, made).returncode == 0
        files = receipts.read(made.results.summary, SumReceipt).files
        assert {"covariance", "correlation", "row_mean", "offset"} < files.keys()
        seen.add(tuple(made.results.statistic(name).read_bytes() for name in sorted(files)))
    assert len(seen) == 1
    expected = np.cov(left.reshape(-1, 370), rowvar=False)
    np.testing.assert_allclose(np.load(made.results.statistic("covariance")), expected, atol=1e-12)


def test_results_of_another_plan_do_not_stay(tmp_path):
    """A sum per label, then a mean: the summary of the earlier files is gone, or damaged."""
    left, own = stack((6, 3, 3)), {"results": str(tmp_path / "results")}
    np.save(tmp_path / "labels.npy", np.arange(6) % 2)
    labels = {"labels": str(tmp_path / "labels.npy")}
    made = listed(factories.plan(tmp_path, left, **own, **labels))
    assert mpirun(1, made).returncode == 0
    Store(made).withdraw()  # as a task does before it computes anew
    root = tmp_path / "results"
    (root / "own.npy").touch()
    found = {"labels.npy", "own.npy"}  # the plan's copy of the labels, and a user's file
    (root / "summary.json").unlink()
    reduced(listed(factories.plan(tmp_path, left, **own)), "sum", "mean")
    assert {path.name for path in root.glob("*.npy")} == found | {"sum.npy", "mean.npy"}
    assert not (root / "labels.json").exists()
    (root / "summary.json").write_text("[1]")
    reduced(listed(factories.plan(tmp_path, left, product="A.T @ A", **own)), "sum")
    assert {path.name for path in root.glob("*.npy")} == found | {"sum.npy"}


def test_a_reduce_that_cannot_publish_leaves_no_result_of_another_plan(tmp_path):
    """The next one no longer knows which files that plan has left."""
    left, own = stack((4, 3, 3)), {"results": str(tmp_path / "results")}
    reduced(listed(factories.plan(tmp_path, left, **own)), "sum", "std")
    made = listed(factories.plan(tmp_path, left, product="A.T @ A", **own))
    made.results.summary.unlink()  # as Snakemake does before the job
    made.results.statistic("sum").unlink()
    made.results.statistic("sum").mkdir()
    with pytest.raises(InputError, match="a folder is where a file should be"):
        reduced(made)
    made.results.statistic("sum").rmdir()
    reduced(made)
    assert not made.results.statistic("std").exists()


def test_a_result_that_lacks_a_stripe_is_refused(tmp_path):
    """All of the sum has been written, but only half of the mean."""
    made = factories.plan(tmp_path, stack((5, 2, 2)), shards=2)
    files = ResultFiles(made.results, made.problem, 4, ["sum", "mean"])
    files.open(files.create())
    files.write({"sum": np.ones(4), "mean": np.ones(2)}, 0)
    files.close()
    with pytest.raises(IntegrityError, match="1 of 1 pieces are missing"):
        files.refuse_incomplete()
    files.discard()
