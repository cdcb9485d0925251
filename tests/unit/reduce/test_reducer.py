"""The ledger and the reduce: the right sum from any number of ranks, or no sum at all."""

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.files import pieces
from shardwise.numerics.tree import TreeSum
from shardwise.plan import memory
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


@pytest.fixture
def made(tmp_path):
    """A plan of seven matrices in three shards, computed."""
    return listed(factories.plan(tmp_path, stack((7, 4, 4)), shards=3))


BOTH = pytest.mark.parametrize("over", [{}, {"keep": "sum"}])


@pytest.mark.parametrize(("keep", "dtype"), [
    ("sum", "float16"), ("sum", "float64"), ("sum", "complex64"),
    ("products", "float32"), ("products", "complex64"), ("products", "int16"),
])  # fmt: skip
def test_sums_have_the_same_bits_however_they_come_about(tmp_path, monkeypatch, keep, dtype):
    """For any shards, batches and stripes it is the tree over the products as written."""
    left, seen = noise((11, 3, 4), dtype), set()
    over = {"materialize": False, "product": "A.T @ A"}
    for shards, size, piece in (1, 10**6, 2**20), (3, 70, 16), (11, 1, 48), (2, 40, 2**20):
        monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", piece)
        monkeypatch.setattr(memory, "HOST_BATCH_BYTES", size)
        plan = factories.plan(tmp_path / str(shards), left, keep=keep, shards=shards, **over)
        made = listed(plan)
        found = reduced(made)
        assert found.dtype == made.problem.sum_dtype
        said = receipts.read(made.results.summary, SumReceipt).files["sum"]
        receipts.check_elements(made.results.statistic("sum"), said)
        seen.add(found.tobytes())
    products = factories.multiplied(made, left)
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
    assert "asked for 3 ranks, but MPI has 2: the launcher does not match" in done.stderr
    assert "see the line 'mpi' of the profile" in done.stderr
    assert nothing_summed(made)


@pytest.mark.parametrize(("kind", "shards", "over", "told"), [
    ("product", ["00001"], {}, "shard 00001: checksums differ"),
    ("receipt", ["00000", "00002"], {}, "2 of 3 shards cannot be summed"),
    ("receipt", ["00001"], {"backend": "cupy"}, "00001 is of cupy); set backend: numpy or"),
])  # fmt: skip
def test_the_reduce_refuses_and_leaves_no_sum(made, kind, shards, over, told):
    """What was damaged after the ledger, or is of another backend: one error, with the repair."""
    for path in (factories.file(made, kind, shard) for shard in shards):
        factories.rewritten(path, **over) if over else factories.flip(path)
    done = factories.run("reduce", "--plan", made.results.plan, "--ranks", 2)
    assert done.returncode == 3, done.stderr
    paths = [str(factories.file(made, "receipt", shard)) for shard in shards]
    cure = "backend: cupy, and" if over else f"again: rm -f {' '.join(paths)}, then"
    assert told in done.stderr
    assert f"{cure} start the run again" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("ERROR") == 1
    assert "abort" not in done.stderr.lower()
    assert nothing_summed(made)


@BOTH
@pytest.mark.parametrize("number", [np.nan, 1.2e154])
def test_a_sum_that_is_not_finite_is_refused(tmp_path, over, number):
    """NaN that another config has allowed, or products that fit float64, but whose sum does not."""
    left = np.zeros((3, 2, 2))
    left[:, 1, 1] = number
    over = over | {"input": str(factories.save(tmp_path / "a.npy", left)), "shards": 3}
    listed(factories.plan(tmp_path, nonfinite="allow", **over))
    made = factories.plan(tmp_path, **over)  # the same products
    ledger.write(made)
    assert "the sum is not finite: it over" in factories.refusal(reduced, made)
    assert nothing_summed(made)


@BOTH
def test_allowed_nonfinite_numbers_reach_the_sum(tmp_path, over):
    """nonfinite: allow sums as IEEE 754 says: NaN, Inf, and NaN from Inf - Inf."""
    left, right = np.zeros((3, 5, 1)), np.ones((3, 1, 1))
    left[:, :, 0] = [[1, np.nan, np.inf, np.inf, 1], [2, 3, 4, 5, 6], [3, 1, 1, -np.inf, -np.inf]]
    over = {"product": "A @ B", "shards": 2, "nonfinite": "allow", "materialize": False, **over}
    made = listed(factories.plan(tmp_path, left, right, **over))
    np.testing.assert_array_equal(reduced(made)[:, 0], [6, np.nan, np.inf, np.nan, -np.inf])


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
    """Also if the summary or the marker is gone; a user's files stay."""
    left, root = stack((6, 3, 3)), tmp_path / "results"
    own = {"results": str(root)}
    np.save(tmp_path / "labels.npy", np.arange(6) % 2)
    made = listed(factories.plan(tmp_path, left, labels=str(tmp_path / "labels.npy"), **own))
    assert mpirun(1, made).returncode == 0
    np.save(root / "own.npy", left)
    (root / "summary.json").unlink()
    found = {"labels.npy", "own.npy"}  # the plan's copy of the labels, and a user's file
    made = listed(factories.plan(tmp_path, left, **own))
    reduced(made, "sum", "mean")
    assert {path.name for path in root.glob("*.npy")} == found | {"sum.npy", "mean.npy"}
    assert not (root / "labels.json").exists()
    Store(made).withdraw()  # as a task does before it computes anew
    (root / "summary.json").unlink()  # as Snakemake does before a reduce
    reduced(listed(factories.plan(tmp_path, left, product="A.T @ A", **own)))
    assert {path.name for path in root.glob("*.npy")} == found | {"sum.npy"}


def test_a_result_that_lacks_a_stripe_is_refused(tmp_path):
    """All of the sum has been written, but only half of the mean."""
    made = factories.plan(tmp_path, stack((5, 2, 2)), shards=2)
    files = ResultFiles(made.results, made.problem, 4, ["sum", "mean"])
    files.open(files.create())
    files.write({"sum": np.ones(4), "mean": np.ones(2)}, 0)
    files.close()
    with pytest.raises(IntegrityError, match="a piece of the elements is missing"):
        files.refuse_incomplete()
    files.discard()
