"""The kernel and its pipeline on NumPy: right products, proven, committed whole or not at all."""

import json
import math
import os
import re
import subprocess

import numpy as np
import pytest
from shardwise.devices import choose
from shardwise.errors import InputError, IntegrityError
from shardwise.files import pieces as piecess
from shardwise.files.checksum import file_checksum
from shardwise.multiply import backend, copy, job, lanes
from shardwise.multiply.session import Session
from shardwise.numerics import binned, gemm
from shardwise.plan import memory
from shardwise.records import receipts

from tests import factories
from tests.factories import (
    FLOATS,
    INTEGERS,
    PRODUCTS,
    REFERENCES,
    computed,
    copied,
    leftovers,
    noise,
    partials,
    products,
    save,
    stack,
)


def nothing_committed(made):
    """No product, no receipt and no temporary file lies in the results."""
    names = (made.results.product, made.results.receipt)
    whole = [name(s) for s in made.shards for name in names if name(s).exists()]
    return not whole and not leftovers(made.results.root)


def refusal(made, error=InputError, shard_id="00000"):
    """The message that refuses a shard, which leaves nothing behind."""
    with pytest.raises(error) as caught:
        job.run_shard(made, shard_id)
    assert nothing_committed(made)
    return str(caught.value)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_are_those_of_numpy(tmp_path, dtype, product):
    """All products of all dtypes are NumPy's; integers become int64."""
    left = stack((7, 5, 5) if product == "A @ A" else (7, 3, 5), dtype)
    right = stack((7, 5, 4), dtype, 1) if product == "A @ B" else None
    over = {"product": product, "shards": 2, "materialize": False}
    made = computed(factories.plan(tmp_path, left, right, **over))
    wide = "int64" if np.dtype(dtype).kind in "iu" else "complex128"
    expected = REFERENCES[product](left.astype(wide), None if right is None else right.astype(wide))
    found = products(made)
    assert found.dtype == (np.int64 if wide == "int64" else np.dtype(dtype))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("product", ["A @ A", "A.T @ A", "A @ A.T"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_products_of_noise_are_numpys_to_the_bit(tmp_path, dtype, product):
    """Each matrix is multiplied as numpy.matmul does it alone."""
    left = noise((5, 33, 33), dtype)
    over = {"product": product, "shards": 2, "materialize": False}
    made = computed(factories.plan(tmp_path, left, **over))
    expected = np.stack([REFERENCES[product](a, None) for a in left])
    assert products(made).tobytes() == expected.tobytes()


def test_transposes_are_not_conjugated(tmp_path):
    """A.T @ A of complex matrices uses the plain transpose, as the schema says."""
    left = np.array([[[1j, 0], [0, 2j]]], "complex128")
    made = computed(factories.plan(tmp_path, left, product="A.T @ A", shards=1))
    np.testing.assert_array_equal(products(made)[0], [[-1, 0], [0, -4]])


def test_float16_is_accumulated_in_float32(tmp_path):
    """4096 + 1 + … + 1 loses nothing on the way and is rounded once."""
    left = np.ones((1, 1, 3001), "float16")
    left[0, 0, 0] = 32
    made = computed(factories.plan(tmp_path, left, product="A @ A.T", shards=1))
    assert products(made)[0, 0, 0] == np.float16(1024 + 3000)


def test_one_right_factor_for_all(tmp_path):
    """A 2-D B serves every matrix of every shard."""
    left, right = stack((7, 3, 5)), stack((5, 4), seed=1)
    made = computed(factories.plan(tmp_path, left, right, product="A @ B", shards=3))
    np.testing.assert_array_equal(products(made), left @ right)


def layouts(tmp_path, left):
    """The same stack as it may lie on disk, by name."""
    swapped = left.dtype.newbyteorder(">")
    for i, matrix in enumerate(left):
        save(tmp_path / "folder" / f"{i}.npy", np.asfortranarray(matrix) if i % 2 else matrix)
    rows = "".join(f"folder/{i}.npy\n" for i in range(len(left)))
    (tmp_path / "s.tsv").write_text("path\n" + rows)
    return {
        "C": save(tmp_path / "c.npy", left),
        "F": save(tmp_path / "f.npy", np.asfortranarray(left)),
        "big-endian": save(tmp_path / "b.npy", left.astype(swapped)),
        "big-endian F": save(tmp_path / "bf.npy", np.asfortranarray(left.astype(swapped))),
        "folder": tmp_path / "folder",
        "sheet": tmp_path / "s.tsv",
    }


@pytest.mark.parametrize(
    ("dtype", "keep"), [("float32", "products"), ("complex128", "sum"), ("int16", "products")]
)
def test_layout_and_copying_change_no_bit(tmp_path, dtype, keep):
    """Whatever lies on disk however, copied first or read in place: the same bits."""
    left = stack((7, 6, 6), dtype) if dtype == "int16" else noise((7, 6, 6), dtype)
    seen = set()
    for name, path in layouts(tmp_path, left).items():
        for materialize in (True, False):
            folder = tmp_path / f"{name}{materialize}"
            over = {"materialize": materialize, "keep": keep, "shards": 2, "input": str(path)}
            seen.add(products(computed(factories.plan(folder, **over))).tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_a_kept_sum_is_the_sum_of_the_products(tmp_path, dtype):
    """keep: sum writes the planes of one array a shard: its products added up exactly."""
    left = stack((7, 3, 3), dtype)
    made = computed(factories.plan(tmp_path, left, keep="sum", shards=2, materialize=False))
    wide = {"i": "int64", "c": "complex128"}.get(np.dtype(dtype).kind, "float64")
    whole = (left.astype(wide) @ left.astype(wide)).astype(wide)
    files = products(made)
    assert files.dtype == np.int64
    assert files.shape[1:] == binned.plane_shape((3, 3), made.problem.product_dtype)
    for row, planes in zip(made.shards.values(), files, strict=True):
        facts = factories.receipt(made, row.shard)
        assert facts.keep == "sum"
        assert facts.file.bytes == 4096 + row.product_bytes == 4096 + planes.nbytes
    found = partials(made)
    assert found.dtype == wide
    np.testing.assert_array_equal(found, [whole[:3].sum(axis=0), whole[3:].sum(axis=0)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_a_kept_sum_is_the_rounded_sum_of_numpys_products(tmp_path, dtype):
    """Rounded once from the products that numpy.matmul computes: nothing else is lost."""
    left = noise((11, 20, 20), dtype)
    made = computed(factories.plan(tmp_path, left, keep="sum", shards=1, materialize=False))
    whole = (left @ left).reshape(11, -1)
    parts = whole.view(f"f{whole.real.itemsize}").astype("f8")
    exact = [math.fsum(column) for column in parts.T]
    assert partials(made)[0].reshape(-1).view("f8").tolist() == exact


SIZES = ((1600, 100), (3 * 1600, 5000), (10**9, 10**9), (7 * 1600, 4096), (1, 10**9))
"""Bytes of a batch, of one matrix 20 by 20 up, and of a slab, some odd."""


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_no_size_of_slabs_and_batches_changes_a_bit(tmp_path, monkeypatch, product, keep):
    """Slabs inside matrices or over many, one matrix a batch or all: the same bits."""
    left = noise((11, 20, 20), "float32")
    right = noise((11, 20, 20), "float32", 1) if product == "A @ B" else None
    over = {"product": product, "keep": keep, "shards": 2, "materialize": False}
    made, seen = factories.plan(tmp_path, left, right, **over), set()
    for batch, slab in SIZES:
        monkeypatch.setattr(memory, "HOST_BATCH_BYTES", batch)
        monkeypatch.setattr(piecess, "SLAB_BYTES", slab)
        seen.add(products(computed(made)).tobytes())
    assert len(seen) == 1


def test_the_cut_changes_no_product(tmp_path):
    """One shard or eleven: product i has the same bits."""
    left = noise((11, 20, 20), "float32")
    over = {"materialize": False}
    seen = {
        products(computed(factories.plan(tmp_path / str(n), left, shards=n, **over))).tobytes()
        for n in (1, 3, 11)
    }
    assert len(seen) == 1


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("materialize", [True, False])
def test_matrices_larger_than_a_slab_and_a_batch(tmp_path, monkeypatch, materialize, keep):
    """A matrix in several slabs, a product too; and B of another size beside it."""
    monkeypatch.setattr(piecess, "SLAB_BYTES", 4099)
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 100)
    left, right = noise((5, 31, 53), "float64"), noise((5, 53, 7), "float64", 1)
    over = {"product": "A @ B", "materialize": materialize, "keep": keep, "shards": 2}
    made = computed(factories.plan(tmp_path, left, right, **over))
    if keep == "products":
        assert products(made).tobytes() == (left @ right).tobytes()
    else:
        whole = binned.BinnedSum(np, (31, 7), "float64")
        whole.add(left[:2] @ right[:2])
        assert products(made)[0].tobytes() == whole.planes().tobytes()


@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 1, 7), (9, 7, 1), (1, 300, 2), (600, 1, 1)])
@pytest.mark.parametrize("product", ["A.T @ A", "A @ A.T"])
def test_matrices_of_one_row_or_column_and_shards_of_one_matrix(tmp_path, shape, product):
    """The smallest shapes go through as any other."""
    left = stack(shape)
    over = {"product": product, "shards": min(len(left), 2), "materialize": False}
    made = computed(factories.plan(tmp_path, left, **over))
    np.testing.assert_array_equal(products(made), REFERENCES[product](left, None))


def test_a_shard_a_matrix(tmp_path):
    """As many shards as matrices, each with a B of its own."""
    left, right = stack((4, 3, 5)), stack((4, 5, 2), seed=1)
    made = computed(factories.plan(tmp_path, left, right, product="A @ B", shards=4))
    np.testing.assert_array_equal(products(made), left @ right)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_tf32_is_computed_as_float32_by_numpy(tmp_path, dtype):
    """NumPy has no tf32: the bits are those of ieee, and the receipt says how they came about."""
    left = noise((3, 9, 9), dtype)
    over = {"precision": "tf32", "shards": 1, "materialize": False}
    made = computed(factories.plan(tmp_path, left, **over))
    assert products(made).tobytes() == (left @ left).tobytes()
    assert factories.receipt(made).compute == dtype


def test_the_receipt_says_what_was_done(tmp_path):
    """Range, fingerprint, checksum, proof, backend and attempt stand in the receipt."""
    made = computed(factories.plan(tmp_path, stack((5, 3, 3)), shards=2))
    receipt, row = factories.receipt(made, "00001"), made.shards["00001"]
    product = made.results.product("00001")
    assert (receipt.shard, receipt.start, receipt.stop) == ("00001", 2, 5)
    assert receipt.fingerprint == row.fingerprint
    assert receipt.attempt == 1
    assert receipt.backend == "numpy"
    assert receipt.proof.method == "freivalds"
    assert (receipt.keep, receipt.compute) == ("products", "float32")
    pieces = receipt.file.row_bytes, receipt.file.piece_bytes
    assert pieces == piecess.checksum_pieces(3 * 3 * 4)
    assert receipt.file.shape == (3, 3, 3)
    assert receipt.file.bytes == product.stat().st_size
    assert receipt.file.checksum == file_checksum(product, 4096, *pieces)


def test_without_verification_the_receipt_says_so(tmp_path):
    """verify: false computes the same and claims no proof."""
    made = computed(factories.plan(tmp_path, stack((2, 3, 3)), shards=1, verify=False))
    assert factories.receipt(made).proof is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_first_nonfinite_matrix_is_named(tmp_path, dtype, bad):
    """nonfinite: error names the matrix by its place in the whole stack, and leaves nothing."""
    left = stack((9, 3, 3), dtype)
    left[6, 1, 2] = left[8, 0, 0] = bad
    made = factories.plan(tmp_path, left, shards=3, materialize=False)
    assert "input: matrix 6 holds NaN or Inf" in refusal(made, shard_id="00002")
    job.run_shard(made, "00001")


@pytest.mark.parametrize("shape", [(9, 3, 3), (3, 3)])
def test_a_nonfinite_right_factor_is_told_from_the_input(tmp_path, shape):
    """The message says that it is B."""
    right = stack(shape, seed=1)
    right[..., 1, 1] = np.nan
    made = copied(factories.plan(tmp_path, stack((9, 3, 3)), right, product="A @ B", shards=3))
    told = "right: matrix 3 holds" if len(shape) == 3 else "right: the matrix holds"
    assert told in refusal(made, shard_id="00001")


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("verify", [True, False])
def test_allowed_nonfinite_numbers_go_through(tmp_path, keep, verify):
    """nonfinite: allow computes with them; the other products are proven as ever."""
    left = stack((4, 3, 3), "float64")
    left[1, 0, 0], left[2, 1, 1] = np.nan, np.inf
    over = {"nonfinite": "allow", "keep": keep, "verify": verify, "shards": 1}
    made = computed(factories.plan(tmp_path, left, **over))
    with np.errstate(invalid="ignore"):
        expected = left @ left
        expected = expected.sum(axis=0)[np.newaxis] if keep == "sum" else expected
    found = partials(made) if keep == "sum" else products(made)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float16", 300), ("float32", 1e25), ("float64", 1e200), ("complex64", 1e25)],
)
def test_overflow_is_named(tmp_path, dtype, value):
    """A product that overflows from finite factors names its matrix and the dtype."""
    left = stack((4, 3, 3), dtype)
    left[2] = value
    made = copied(factories.plan(tmp_path, left, shards=1))
    told = refusal(made)
    assert f"the product of matrix 2 overflows {dtype}" in told
    allowed = computed(factories.plan(tmp_path / "x", left, shards=1, nonfinite="allow"))
    assert not np.isfinite(products(allowed)[2]).any()


def test_a_shards_sum_that_overflows_is_flagged(tmp_path):
    """Finite products whose sum is not finite are no fault of the shard: the reduce refuses."""
    left = np.zeros((3, 2, 2))
    left[:, 0, 0] = 1.2e154
    made = computed(factories.plan(tmp_path, left, shards=1, keep="sum"))
    np.testing.assert_array_equal(partials(made)[0], [[np.inf, 0], [0, 0]])


def test_honest_products_near_the_largest_number_are_not_refused(tmp_path):
    """No device is suspected where every product is finite and right."""
    left = np.full((2, 2, 2), 9e153)
    made = computed(factories.plan(tmp_path, left, shards=1))
    np.testing.assert_array_equal(products(made), left @ left)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("int64", 2**31, True),
        ("int64", 2**32, False),
        ("int64", -(2**63), False),
        ("uint64", 2**64 - 1, False),
        ("uint64", 2**31, True),
        ("int32", -(2**31), True),
        ("uint32", 2**32 - 1, False),
        ("int8", -128, True),
        ("uint8", 255, True),
        ("int16", -32768, True),
    ],
)
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
    right = np.array([[[1]], [[2**40]]], "int64")
    for shards in (1, 2):
        over = {"product": "A @ B", "shards": shards}
        made = computed(factories.plan(tmp_path / str(shards), left, right, **over))
        assert products(made).ravel().tolist() == [2**40, 2**40]


def test_the_inner_dimension_bounds_integers(tmp_path):
    """A @ A.T of tall matrices has short inner products: their length, not the height, counts."""
    left = np.full((1, 100, 1), 2**31, "int64")
    made = computed(factories.plan(tmp_path, left, product="A @ A.T", shards=1))
    assert (products(made) == 2**62).all()


@pytest.mark.parametrize("materialize", [True, False])
def test_an_input_that_changed_after_planning_is_refused(tmp_path, materialize):
    """Another file under the planned name is never multiplied under the old fingerprint."""
    made = factories.plan(tmp_path, stack((4, 3, 3)), shards=2, materialize=materialize)
    path = save(tmp_path / "input.npy", stack((4, 3, 3), seed=5))
    os.utime(path, ns=(1, 1))
    with pytest.raises(IntegrityError, match="has changed since the plan was made"):
        computed(made)
    assert nothing_committed(made)


@pytest.mark.parametrize("shape", [(4, 3, 3), (3, 3)])
def test_a_right_factor_that_changed_after_planning_is_refused(tmp_path, shape):
    """B is checked as the input is."""
    over = {"product": "A @ B", "shards": 2}
    made = copied(factories.plan(tmp_path, stack((4, 3, 3)), stack(shape), **over))
    os.utime(save(tmp_path / "right.npy", stack(shape, seed=5)), ns=(1, 1))
    assert "has changed since the plan" in refusal(made, IntegrityError)


def damage(path, how):
    """Damage a file in one of several ways."""
    raw = path.read_bytes()
    path.write_bytes(
        {
            "flip": raw[:-1] + bytes([raw[-1] ^ 1]),
            "truncate": raw[:-4],
            "append": raw + b"1234",
            "empty": b"",
            "header": b"garbage" + raw[7:],
        }[how]
    )


@pytest.mark.parametrize("how", ["flip", "truncate", "append", "empty", "header"])
def test_a_damaged_shard_is_refused(tmp_path, how):
    """A shard file that is not what its receipt says is named, with the command that repairs it."""
    made = copied(factories.plan(tmp_path, stack((4, 3, 3), "int32"), shards=2))
    damage(made.results.shard("00000"), how)
    said = refusal(made, IntegrityError)
    assert "00000.npy" in said
    (command,) = re.findall(r"; (rm .*), then snakemake as before$", said)
    subprocess.run(command, shell=True, check=True)
    job.run_shard(made, "00000")


def recomputed(made):
    """The products of the first shard of a plan, computed now."""
    job.run_shard(made, "00000")
    return np.load(made.results.product("00000"))


def test_a_copy_that_is_made_ahead_takes_no_slab_of_its_own(tmp_path, monkeypatch):
    """It goes through the slabs that the shard before was read into, whose copy was there."""
    made = factories.plan(tmp_path, noise((8, 9, 9)), shards=2, materialize=True)
    copy.materialize(made, "00000")
    taken, new_slab = [], lanes.HostLane._new_slab

    def counted(self, nbytes):
        taken.append(nbytes)
        return new_slab(self, nbytes)

    monkeypatch.setattr(lanes.HostLane, "_new_slab", counted)
    session = Session(made, 0)
    first, second = (job.ShardJob(session, shard) for shard in made.shards)

    def ahead() -> None:
        first.release()
        second.begin()

    first.run(ahead)
    second.run()
    assert len(taken) == 2  # one to read into, one to write from


@pytest.mark.parametrize("kind", ["shard", "shard_receipt"])
def test_a_copy_that_is_not_there_is_made(tmp_path, kind):
    """Without its copy, or without a receipt of it, a task copies its matrices first."""
    made = copied(factories.plan(tmp_path, stack((4, 3, 3)), shards=2))
    getattr(made.results, kind)("00000").unlink()
    assert np.array_equal(recomputed(made), stack((4, 3, 3))[:2] @ stack((4, 3, 3))[:2])


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"schema": 1}', b'{"schema": 9}'])
def test_a_copy_with_a_damaged_receipt_is_made_again(tmp_path, raw):
    """A copy without a whole receipt is no shard."""
    made = copied(factories.plan(tmp_path, stack((4, 3, 3)), shards=2))
    made.results.shard_receipt("00000").write_bytes(raw)
    assert np.array_equal(recomputed(made), stack((4, 3, 3))[:2] @ stack((4, 3, 3))[:2])


def test_a_copy_of_another_plan_is_made_again(tmp_path):
    """A whole copy of an earlier input does not get this plan's receipt."""
    made = copied(factories.plan(tmp_path, stack((4, 3, 3)), shards=2))
    changed = stack((4, 3, 3), seed=5)
    save(tmp_path / "input.npy", changed)
    os.utime(tmp_path / "input.npy", ns=(1, 1))
    again = factories.plan(tmp_path, input=str(tmp_path / "input.npy"), shards=2)
    assert again.shards["00000"].fingerprint != made.shards["00000"].fingerprint
    assert np.array_equal(recomputed(again), changed[:2] @ changed[:2])


def test_a_copy_of_another_range_is_made_again(tmp_path):
    """A copy of the same size that holds other matrices is not used."""
    made = copied(factories.plan(tmp_path, stack((4, 3, 3)), shards=2))
    for name in (made.results.shard, made.results.shard_receipt):
        name("00000").write_bytes(name("00001").read_bytes())
    assert np.array_equal(recomputed(made), stack((4, 3, 3))[:2] @ stack((4, 3, 3))[:2])


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128", "int16", "int64"])
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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_wrong_sum_inside_the_gemm_is_refused(tmp_path, monkeypatch, product, dtype):
    """Under reproducible: false the sum of a batch is proven as one product."""
    accumulate = gemm.MatmulKernel.accumulate

    def faulty(self, block, other):
        total = accumulate(self, block, other)
        total[0, 1, 2] += 1
        return total

    left = stack((6, 8, 8), dtype)
    right = stack((6, 8, 8), dtype, 1) if product == "A @ B" else None
    over = {"product": product, "keep": "sum", "reproducible": False, "shards": 2}
    made = factories.plan(tmp_path, left, right, materialize=False, **over)
    monkeypatch.setattr(gemm.MatmulKernel, "accumulate", faulty)
    told = refusal(made, IntegrityError, "00001")
    assert "the sum of the products 3 to 5 is wrong: Freivalds' check" in told


def sums_in_gemm(tmp_path, left, right=None, **over):
    """A plan under reproducible: false, multiplied."""
    over = {"keep": "sum", "reproducible": False, "materialize": False, "shards": 2, **over}
    return computed(factories.plan(tmp_path, left, right, **over))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_sums_inside_the_gemm_are_plain_sums(tmp_path, monkeypatch, product, dtype):
    """One wide array a shard, exact where all is exact, over several batches; and proven."""
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 2 * 5 * 5 * np.dtype(dtype).itemsize)
    left = stack((9, 5, 5) if product == "A @ A" else (9, 3, 5), dtype)
    right = stack((9, 5, 4), dtype, 1) if product == "A @ B" else None
    made = sums_in_gemm(tmp_path, left, right, product=product)
    whole = REFERENCES[product](left.astype("c16"), None if right is None else right.astype("c16"))
    found = products(made)
    assert found.dtype == made.problem.sum_dtype
    np.testing.assert_array_equal(found, [whole[:4].sum(axis=0), whole[4:].sum(axis=0)])
    assert factories.receipt(made).proof.method == "freivalds"


def test_one_right_factor_for_sums_inside_the_gemm(tmp_path):
    """A 2-D B serves every matrix there as well."""
    left, right = stack((7, 3, 5)), stack((5, 4), seed=1)
    made = sums_in_gemm(tmp_path, left, right, product="A @ B")
    whole = (left @ right).astype("f8")
    np.testing.assert_array_equal(products(made), [whole[:3].sum(axis=0), whole[3:].sum(axis=0)])


def test_integers_are_exact_under_reproducible_false(tmp_path):
    """There is nothing to trade: they write planes in either case."""
    left = stack((7, 3, 3), "int16")
    made = sums_in_gemm(tmp_path, left)
    planes = computed(factories.plan(tmp_path / "x", left, keep="sum", shards=2))
    assert products(made).tobytes() == products(planes).tobytes()


def test_products_do_not_depend_on_reproducible(tmp_path):
    """keep: products sums nothing, so there is nothing to trade either."""
    left = noise((5, 9, 9), "float32")
    made = sums_in_gemm(tmp_path, left, keep="products")
    assert products(made).tobytes() == (left @ left).tobytes()


def test_nonfinite_numbers_in_sums_inside_the_gemm(tmp_path):
    """They are refused by matrix, or go through to the sum."""
    left = stack((6, 3, 3), "float64")
    left[4, 0, 1] = np.nan
    over = {"keep": "sum", "reproducible": False, "shards": 2, "materialize": False}
    made = factories.plan(tmp_path, left, **over)
    assert "input: matrix 4 holds NaN or Inf" in refusal(made, shard_id="00001")
    allowed = sums_in_gemm(tmp_path / "x", left, nonfinite="allow")
    np.testing.assert_array_equal(products(allowed)[1], (left[3:] @ left[3:]).sum(axis=0))


@pytest.mark.parametrize(
    ("dtype", "value", "told"), [("float32", 1e25, "float32"), ("float64", 1e200, "float64")]
)
def test_overflow_inside_the_gemm_is_named(tmp_path, dtype, value, told):
    """A sum that overflows from finite factors names the matrices and the dtype."""
    left = stack((4, 3, 3), dtype)
    left[2] = value
    over = {"keep": "sum", "reproducible": False, "shards": 1, "materialize": False}
    made = factories.plan(tmp_path, left, **over)
    assert f"the sum of the products 0 to 3 overflows {told}" in refusal(made)


def test_complex_numbers_near_the_largest_are_finite(tmp_path):
    """Two finite parts whose sum is none make no infinite number."""
    left = np.full((2, 1, 1), 1.5e308 * (1 + 1j))
    right = np.full((2, 1, 1), 1e-200 + 0j)
    made = sums_in_gemm(tmp_path, left, right, product="A @ B", shards=1)
    np.testing.assert_array_equal(products(made)[0], left[0] * 2e-200)


def test_a_failure_keeps_an_earlier_result(tmp_path):
    """A rerun that fails leaves the committed product and receipt as they were."""
    made = computed(factories.plan(tmp_path, stack((4, 3, 3)), shards=1))
    before = [
        made.results.product("00000").read_bytes(),
        made.results.receipt("00000").read_bytes(),
    ]
    damage(made.results.shard("00000"), "flip")
    with pytest.raises(IntegrityError):
        job.run_shard(made, "00000")
    after = [made.results.product("00000").read_bytes(), made.results.receipt("00000").read_bytes()]
    assert after == before
    assert not leftovers(tmp_path)


def test_cupy_without_a_driver_is_bad_config(monkeypatch):
    """backend: cupy on a machine without a driver says what to do; auto falls back with a word."""
    monkeypatch.setattr(choose, "driver_cuda_version", lambda: None)
    with pytest.raises(InputError, match="backend: cupy needs an NVIDIA driver"):
        backend.load_backend("cupy")
    assert backend.load_backend("auto")[0] is np
    assert backend.load_backend("numpy")[0] is np


def test_a_receipt_is_json_that_people_can_read(tmp_path):
    """One key a line, ending in a line end."""
    made = computed(factories.plan(tmp_path, stack((2, 3, 3)), shards=1))
    raw = made.results.receipt("00000").read_text()
    assert raw.endswith("}\n")
    assert '\n "checksum"' in raw.replace("\n  ", "\n ")
    assert json.loads(raw)["schema"] == receipts.SCHEMA
