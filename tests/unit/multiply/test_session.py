"""The kernel and its pipeline on NumPy: right products, proven, committed whole or not at all."""

import numpy as np
import pytest
from shardwise.errors import InputError, IntegrityError
from shardwise.multiply import job
from shardwise.numerics import gemm
from shardwise.plan import memory

from tests import factories
from tests.factories import computed, copied, products, refused, save, stack, wide


@pytest.mark.parametrize("line", ["block", "block / 0"])
def test_a_function_is_told_of_what_counts_alone(tmp_path, line):
    """In place of a matrix of weight 0 it gets a copy of another; that copy is never blamed."""
    (tmp_path / "own.py").write_text(f"def own(xp, block):\n    return {line}\n")
    left = stack((4, 3, 3), "float64") + 10
    left[0] = left[2 if line == "block" else 0, 1, 1] = np.nan
    weights = str(save(tmp_path / "w.npy", np.array([0.0, 0, 1, 1])))
    over = {"product": f"{tmp_path}/own.py:own", "shards": 1, "materialize": False}
    made = factories.plan(tmp_path, left, weights=weights, **over)
    what = "matrix 2 holds NaN" if line == "block" else "returned NaN or Inf for matrix 2"
    with np.errstate(all="ignore"):
        assert what in refused(made)


def test_what_b_makes_of_a_matrix_that_does_not_count_blames_no_device(tmp_path):
    """An allowed infinity in the one B makes the product of a zeroed matrix NaN."""
    right = stack((3, 3), "float32", 1)
    right[1, 1] = np.inf
    weights = str(save(tmp_path / "w.npy", np.array([0.0, 1, 1, 1])))
    over = {"product": "A @ B", "nonfinite": "allow", "shards": 1, "materialize": False}
    made = factories.plan(tmp_path, stack((4, 3, 3)), right, weights=weights, **over)
    found = products(computed(made))
    assert not found[0].any()
    assert not np.isfinite(found[1:]).all()


@pytest.mark.parametrize(("left", "right", "fits"), [
    ([2**31] * 2, None, True), ([2**32], None, False), ([-(2**63)], None, False),
    (np.array([2**64 - 1], "uint64"), None, False), (np.array([2**31], "uint64"), None, True),
    (np.array([2**32 - 1], "uint32"), None, False), (np.array([-128], "int8"), None, True),
    ([2**40, 1], [1, 2**40], True),  # the bound is that of the two matrices that are multiplied
    # Two finite parts whose sum overflows do not make a number infinite.
    ([1.5e308 * (1 + 1j)], [1e-200 + 0j], True), ([[1, 1], [1, 2**32]], None, False),
])  # fmt: skip
def test_products_are_exact_or_refused(tmp_path, left, right, fits):
    """Products that may not fit int64 are refused before they are computed."""
    shape = (-1, 1, 1) if np.ndim(left) == 1 else (1, 2, 2)
    left, right = (None if x is None else np.reshape(x, shape) for x in (left, right))
    over = {"shards": 1, "product": "A @ A" if right is None else "A @ B"}
    made = factories.plan(tmp_path, left, right, **over)
    if fits:
        computed(made)
        expected = wide(left) * wide(left if right is None else right)
        np.testing.assert_array_equal(products(made), expected)
    else:
        assert "may not fit int64" in refused(made)


@pytest.mark.parametrize("lost", ["copy", "receipt", "damaged", "of another shard"])
def test_a_copy_that_is_not_whole_or_not_of_the_plan_is_made_again(tmp_path, lost):
    """Without its copy, or without a whole receipt of it, a task copies its matrices first."""
    made = copied(factories.plan(tmp_path, left := stack((4, 3, 3)), shards=2))
    path, receipt = (factories.file(made, kind) for kind in ("shard", "shard_receipt"))
    if lost == "damaged":
        receipt.write_bytes(b'{"schema": 1}')
    elif lost == "of another shard":
        path.write_bytes(factories.file(made, "shard", "00001").read_bytes())
        receipt.write_bytes(factories.file(made, "shard_receipt", "00001").read_bytes())
    else:
        (path if lost == "copy" else receipt).unlink()
    job.run_shard(made, "00000")
    assert np.array_equal(np.load(factories.file(made, "product")), left[:2] @ left[:2])
    assert not list(made.results.root.glob("logs/*/*.starts"))  # each took one attempt


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "complex128", "int16"])
def test_a_wrong_product_is_refused(tmp_path, monkeypatch, dtype, keep):
    """The message names the matrix whose product is wrong, and nothing is committed."""
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 2 * 8 * 8 * np.dtype(dtype).itemsize)
    multiply_batch, done = gemm.MatmulKernel.multiply, []

    def faulty(self, block, other, out, count):
        multiply_batch(self, block, other, out, count)
        if len(done) <= 5 < len(done) + count:
            out[5 - len(done), 2, 3] += 1
        done.extend(range(count))

    over = {"shards": 2, "keep": keep, "materialize": False}
    made = factories.plan(tmp_path, stack((14, 8, 8), dtype), **over)
    monkeypatch.setattr(gemm.MatmulKernel, "multiply", faulty)
    told = refused(made, "00001", IntegrityError)
    assert "the product of matrix 12 is wrong: Freivalds' check" in told


def test_a_folder_that_was_renamed_is_not_made_anew(tmp_path):
    """A task that works in it copies nothing to its old name, and leaves no journal there."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2)
    own = job.ShardJob(job.Session(made), "00001")
    made.results.root.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="was renamed or removed while this task worked"):
        own.begin()
    assert not made.results.root.exists()


def test_a_new_synthetic_stack_removes_its_former_receipts_alone(tmp_path):
    """Other files of the results folder are the user's, whatever their names begin with."""
    wanted = {"matrices": 4, "dim": 3, "dtype": "float32", "seed": 0}
    former = copied(factories.plan(tmp_path, synthetic=wanted, materialize=False))
    (mine := tmp_path / "results" / "input-of-monday.json").touch()
    made = copied(factories.plan(tmp_path, synthetic=wanted | {"seed": 1}, materialize=False))
    assert sorted(tmp_path.glob("results/input-*.json")) == sorted([made.synthetic_receipt, mine])
    assert former.synthetic_receipt != made.synthetic_receipt
