"""The kernel and its pipeline on NumPy: right products, proven, committed whole or not at all."""

import os

import numpy as np
import pytest
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.files import pieces
from shardwise.files.checksum import file_checksum
from shardwise.multiply import job
from shardwise.multiply.session import Session
from shardwise.numerics import gemm
from shardwise.plan import memory
from shardwise.records import receipts

from tests import factories
from tests.factories import (
    FLOATS,
    computed,
    copied,
    leftovers,
    partials,
    products,
    save,
    stack,
)


def nothing_committed(made):
    """No product, no receipt and no temporary file lies in the results."""
    return not [*made.results.products.glob("*"), *leftovers(made.results.root)]


def refusal(made, error=InputError, shard_id="00000"):
    """The message that refuses a shard, which leaves nothing behind."""
    with pytest.raises(error) as caught:
        job.run_shard(made, shard_id)
    assert nothing_committed(made)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_a_kept_sum_is_the_sum_of_the_products(tmp_path, dtype):
    """keep: sum writes the nodes that a shard leaves, which are its products added up."""
    left = stack((7, 3, 3), dtype)
    made = computed(factories.plan(tmp_path, left, keep="sum", shards=2, materialize=False))
    wide = {"i": "int64", "c": "complex128"}.get(np.dtype(dtype).kind, "float64")
    whole = (left.astype(wide) @ left.astype(wide)).astype(wide)
    left_over = ((1, 0), (0, 2)), ((0, 3), (1, 2), (0, 6))
    for row, nodes in zip(made.shards.values(), left_over, strict=True):
        facts = factories.receipt(made, row.shard)
        assert facts.keep == "sum"
        assert facts.file.nodes == nodes
        assert facts.file.shape == (len(nodes), 3, 3)
        assert facts.file.bytes == 4096 + row.product_bytes
        assert made.results.product(row.name).stat().st_size == facts.file.bytes
    found = partials(made)
    assert found.dtype == wide
    np.testing.assert_array_equal(found, [whole[:3].sum(axis=0), whole[3:].sum(axis=0)])


def test_the_receipt_says_what_was_done(tmp_path):
    """Range, key, checksum, proof, backend and attempt stand in the receipt."""
    made = computed(factories.plan(tmp_path, stack((5, 3, 3)), shards=2))
    receipt, product = factories.receipt(made, "00001"), factories.file(made, "product", "00001")
    assert (receipt.shard, receipt.start, receipt.stop) == ("00001", 2, 5)
    assert (receipt.key, receipt.attempt) == (made.shards["00001"].key, 1)
    assert (receipt.backend, receipt.keep, receipt.compute) == ("numpy", "products", "float32")
    assert receipt.proof.method == "freivalds"
    assert (receipt.file.shape, receipt.file.bytes) == ((3, 3, 3), product.stat().st_size)
    cut = receipt.file.row_bytes, receipt.file.piece_bytes
    assert cut == pieces.checksum_pieces(3 * 3 * 4)
    assert receipt.file.checksum == file_checksum(product, 4096, *cut)


@pytest.mark.parametrize(
    ("dtype", "value", "over"),
    [("float16", 300, {}), ("float32", 1e25, {}), ("float64", 1e200, {}), ("complex64", 1e25, {}),
     ("float32", 1e25, {"keep": "sum"})],
)  # fmt: skip
def test_overflow_is_named(tmp_path, dtype, value, over):
    """A product that overflows from finite factors names its matrix and the dtype."""
    left = stack((4, 3, 3), dtype)
    left[2] = value
    made = copied(factories.plan(tmp_path, left, shards=1, **over))
    assert f"the product of matrix 2 overflows {dtype}" in refusal(made)
    allowed = factories.plan(tmp_path / "x", left, shards=1, nonfinite="allow", **over)
    assert not np.isfinite(products(computed(allowed))[0 if over else 2]).any()


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [("int64", 2**31, True), ("int64", 2**32, False), ("int64", -(2**63), False),
     ("uint64", 2**64 - 1, False), ("uint64", 2**31, True), ("uint32", 2**32 - 1, False),
     ("int8", -128, True)],
)  # fmt: skip
def test_integers_are_exact_or_refused(tmp_path, dtype, value, fits):
    """Products that may not fit int64 are refused before they are computed; others are exact."""
    left = np.full((3, 1, 1), value, dtype)
    made = copied(factories.plan(tmp_path, left, shards=1))
    if fits:
        job.run_shard(made, "00000")
        assert products(made).ravel().tolist() == [value * value] * 3
    else:
        assert "may not fit int64" in refusal(made)


def test_integers_are_refused_by_what_is_multiplied_only(tmp_path):
    """The bound of a matrix comes from its own factors: a large A beside a small B passes."""
    left = np.array([[[2**40]], [[1]]], "int64")
    made = computed(factories.plan(tmp_path, left, left[::-1], product="A @ B", shards=1))
    assert products(made).ravel().tolist() == [2**40, 2**40]


@pytest.mark.parametrize("changed", ["input", "copied input", "right", "the one right"])
def test_a_file_that_changed_after_planning_is_refused(tmp_path, changed):
    """Another file under the planned name is never multiplied under the old key."""
    over = {"shards": 2, "materialize": changed != "input", "product": "A @ B"}
    left, right = stack((4, 3, 3)), stack((3, 3) if changed == "the one right" else (4, 3, 3))
    made = factories.plan(tmp_path, left, right, **over)
    name = "right.npy" if "right" in changed else "input.npy"
    os.utime(tmp_path / name, ns=(1, 1))
    with pytest.raises(IntegrityError, match="has changed since the plan was made"):
        computed(made)
    assert nothing_committed(made)


def test_a_shard_that_fails_costs_no_other(tmp_path, monkeypatch):
    """One fails as it is read, while another has begun, and one as it is committed."""
    left, write = stack((16, 4, 4), "float64"), receipts.write_for
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 4 * 4 * 8)

    def broken(path, *words):
        if path == factories.file(made, "receipt"):
            raise TryAgain("no room")
        write(path, *words)

    monkeypatch.setattr(receipts, "write_for", broken)
    left[6] = np.nan
    made = factories.plan(tmp_path, left, shards=4, materialize=False)
    session = Session(made)
    jobs = [job.ShardJob(session, shard).begin() for shard in made.shards]
    jobs[0].compute(lambda: jobs[1])
    with pytest.raises(InputError, match="matrix 6 holds NaN"):
        jobs[1].compute(lambda: jobs[2])
    with pytest.raises(TryAgain, match="no room"):
        jobs[0].finish()
    for each in jobs[2:]:
        each.compute()
        each.finish()
        part = left[each.shard.start : each.shard.stop]
        found = np.load(made.results.product(each.shard.name))
        np.testing.assert_array_equal(found, part @ part)
    assert not factories.file(made, "receipt").exists()
    assert not factories.file(made, "product", "00001").exists()


@pytest.mark.parametrize(
    "lost", ["copy", "receipt", "damaged receipt", "of other matrices", "of an earlier input"]
)
def test_a_copy_that_is_not_whole_or_not_of_the_plan_is_made_again(tmp_path, lost):
    """Without its copy, or without a whole receipt of it, a task copies its matrices first."""
    left = stack((4, 3, 3))
    made = copied(factories.plan(tmp_path, left, shards=2))
    path, receipt = (factories.file(made, kind) for kind in ("shard", "shard_receipt"))
    if lost == "damaged receipt":
        receipt.write_bytes(b'{"schema": 1}')
    elif lost == "of other matrices":
        for kind in ("shard", "shard_receipt"):
            other = factories.file(made, kind, "00001").read_bytes()
            factories.file(made, kind).write_bytes(other)
    elif lost == "of an earlier input":
        save(tmp_path / "input.npy", left := stack((4, 3, 3), seed=5))
        os.utime(tmp_path / "input.npy", ns=(1, 1))
        made = factories.plan(tmp_path, input=str(tmp_path / "input.npy"), shards=2)
    else:
        (path if lost == "copy" else receipt).unlink()
    job.run_shard(made, "00000")
    assert np.array_equal(np.load(factories.file(made, "product")), left[:2] @ left[:2])


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "complex128", "int16"])
def test_a_wrong_product_is_refused(tmp_path, monkeypatch, dtype, keep):
    """A device that computes wrong numbers is suspected by matrix, and nothing is committed."""
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 2 * 8 * 8 * np.dtype(dtype).itemsize)
    kind = gemm.MatmulKernel
    multiply_batch, done = kind.multiply, []

    def faulty(self, block, other, out, count):
        multiply_batch(self, block, other, out, count)
        if len(done) <= 5 < len(done) + count:
            out[5 - len(done), 2, 3] += 1
        done.extend(range(count))

    over = {"shards": 2, "keep": keep, "materialize": False}
    made = factories.plan(tmp_path, stack((14, 8, 8), dtype), **over)
    monkeypatch.setattr(kind, "multiply", faulty)
    told = refusal(made, IntegrityError, "00001")
    assert "the product of matrix 12 is wrong: Freivalds' check" in told


def test_complex_numbers_near_the_largest_are_finite(tmp_path):
    """Two finite parts whose sum is none make no infinite number."""
    left = np.full((2, 1, 1), 1.5e308 * (1 + 1j))
    right = np.full((2, 1, 1), 1e-200 + 0j)
    over = {"product": "A @ B", "shards": 1, "materialize": False, "keep": "sum"}
    made = computed(factories.plan(tmp_path, left, right, **over))
    np.testing.assert_array_equal(products(made)[0], left[0] * 2e-200)


def test_a_failure_keeps_an_earlier_result(tmp_path):
    """A rerun that fails leaves the committed product and receipt as they were."""
    made = computed(factories.plan(tmp_path, stack((4, 3, 3)), shards=1))
    paths = factories.file(made, "product"), factories.file(made, "receipt")
    before = [path.read_bytes() for path in paths]
    factories.flip(factories.file(made, "shard"))
    with pytest.raises(IntegrityError):
        job.run_shard(made, "00000")
    assert [path.read_bytes() for path in paths] == before
    assert not leftovers(tmp_path)
