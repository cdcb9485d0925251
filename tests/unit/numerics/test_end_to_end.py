"""The end-to-end proof: honest runs never alarm, and what is damaged on the way is named."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwise.devices import choose, quarantine
from shardwise.errors import IntegrityError, Misled, WrongInput
from shardwise.files import checksum, npy
from shardwise.multiply import backend, job, lanes
from shardwise.numerics import end_to_end, freivalds, reference, statistics
from shardwise.numerics.tolerances import CheckSpec
from shardwise.plan.problem import Problem
from shardwise.records import ledger, witness
from shardwise.reduce import job as jobs

from tests import factories
from tests.factories import FLOATS, PRODUCTS, REFERENCES, noise, stack

KINDS = {
    "products": {},
    "sum": {"keep": "sum"},
    "uncopied": {"materialize": False},
}


def computed(folder, kind="products", left=None, **over):
    """A plan of three shards, multiplied, with its ledger."""
    left = noise((7, 5, 5), "float32") if left is None else left
    made = factories.computed(factories.plan(folder, left, shards=3, **KINDS[kind], **over))
    ledger.write(made)
    return made


def reduced(made, names=("sum",)):
    """The summary of a reduce by one rank in this process."""
    from mpi4py import MPI

    jobs.run(MPI.COMM_SELF, made.results.plan, list(names))
    return json.loads(made.results.summary.read_bytes())


def witness_rewritten(receipt, **values):
    """Change what a receipt says of the proof; it stays whole by its digest."""
    said = json.loads(receipt.read_bytes())["witness"]
    factories.rewritten(receipt, witness=said | values)


def forge(made, shard_id, change):
    """Change a shard's file, and its checksum in receipt and ledger with it."""
    path = made.results.product(shard_id)
    array = np.load(path, "r+")
    change(array)
    array.flush()

    file = json.loads(made.results.receipt(shard_id).read_bytes())["file"]
    pieces = file["row_bytes"], file["piece_bytes"]
    file["checksum"] = checksum.file_checksum(path, npy.DATA_OFFSET, *pieces)
    factories.rewritten(made.results.receipt(shard_id), file=file)
    ledger.write(made)


def spoil(array):
    """Change one number of a shard's file."""
    array[-1].reshape(-1)[-1] += 1


def problem_of(product, dtype, left, right=None):
    """The problem of a stack, and of the one B that serves all."""
    shape = None if right is None else right.shape
    return Problem(len(left), left.shape[1:], product, dtype, shape, right is not None)


def direct(problem, left, right=None):
    """``lᵀ A B r`` of each matrix, by whole products in the widest arithmetic."""
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(left.dtype.kind, np.int64)
    product = REFERENCES[problem.product](
        left.astype(wide), None if right is None else right.astype(wide)
    )
    integer = "int" in problem.dtype
    m, p = problem.product_shape
    found = (
        reference.weights("l", m, integer)
        @ (product @ reference.weights("r", p, integer))[..., None]
    )
    return found[:, 0]


@given(
    st.sampled_from([*FLOATS, "int8", "uint64", "int64"]),
    st.sampled_from(PRODUCTS),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 9),
    st.data(),
)
def test_the_number_of_the_cpu_is_that_of_the_definition(dtype, product, n, m, k, data):
    """Any cut of the elements, in any order, of all matrices or of some."""
    k = m if product == "A @ A" else k
    make = stack if "int" in dtype else noise
    left, right = make((n, m, k), dtype, n), None
    vector = None
    if product == "A @ B":
        right = make((k, 4), dtype, 9)
        found = reference.RightVector(right.shape, dtype)
        found.update(0, [checksum.raw_bytes(right)])
        vector = found.value()
    problem = problem_of(product, dtype, left, right)
    every = data.draw(st.integers(1, 3))
    own = reference.Reference(problem, n, every, vector)
    raw = checksum.raw_bytes(left)
    cuts = data.draw(st.lists(st.integers(0, left.size), max_size=6))
    runs = list(pairwise(left.itemsize * cut for cut in [0, *sorted(cuts), left.size]))
    for low, high in data.draw(st.permutations(runs)):
        own.update(low, [raw[low:high]])
    summed, single = (reference.Reference(problem, n, each, vector) for each in (None, 1))
    for each in (summed, single):
        each.update(0, [raw])
    close = 0 if "int" in dtype else 1e-12
    np.testing.assert_allclose(summed.total(), single.total(), rtol=close, atol=close)
    expected = direct(problem, left, right)[::every]
    if "int" in dtype:
        np.testing.assert_array_equal(own.values[:, 0], expected)
        return
    values = own.values.view("complex128")[:, 0] if "complex" in dtype else own.values[:, 0]
    np.testing.assert_allclose(values, expected.astype(values.dtype), rtol=1e-10, atol=1e-12)


@settings(max_examples=100)
@given(
    st.sampled_from(FLOATS),
    st.sampled_from(PRODUCTS[:3]),
    st.integers(1, 40),
    st.integers(-30, 30),
    st.integers(0, 2**32),
)
def test_device_and_cpu_agree_at_any_scale(dtype, product, d, exponent, seed):
    """Forms of the check are finite where products are, and agree within their tolerance."""
    with np.errstate(all="ignore"):
        left = (noise((3, d, d), "float64", seed) * 10.0**exponent).astype(dtype)
        compute = "float32" if dtype == "float16" else dtype
        wide = left.astype(compute)
        result = REFERENCES[product](wide, None).astype(dtype)
    if not (np.isfinite(left).all() and np.isfinite(result).all()):
        return
    problem = problem_of(product, dtype, left)
    check = freivalds.Checker(np, CheckSpec(product, left.shape[1:], None, dtype, compute, seed, 2))
    assert (check.check(left, None, result) <= 1).all()
    tally = reference.ShardForms(0, 1)
    tally.add(0, check.forms)
    own, single = reference.Reference(problem, 3), reference.Reference(problem, 3, 1)
    for each in (own, single):
        each.update(0, [checksum.raw_bytes(left)])
    tolerance = end_to_end.product_bound(problem, tally.total(), tally.rows, check.bound)
    account = witness.ShardWitness.of(tally.total(), tolerance)
    assert not end_to_end.differ(problem, account.reference, own.total(), account.mass, 3)
    assert not end_to_end.differ(problem, tally.references[0], single.values[0], tally.masses[0], 1)
    total = reference.SumForm((d, d), problem.sum_dtype)
    total.add(result.astype(problem.sum_dtype).sum(axis=0).reshape(-1), 0)
    verdict = witness.compare_sum(problem, [account], total.value())
    assert verdict.off <= 1
    assert verdict.wrong == []


def test_weights_never_change():
    """Receipts of different days and versions are compared: the first weights of each kind."""
    whole = [-640183754803002333, 870607051800945785, 573325905974314307]
    assert reference.weights("l", 3, True).tolist() == whole
    real = reference.weights("r", 4096, False)
    assert ((np.abs(real) >= 0.5) & (np.abs(real) < 1)).all()
    assert abs(np.sign(real).mean()) < 0.05
    assert (reference.weights("l", 9, False) != real[:9]).all()


def test_subnormal_factors_are_no_false_alarm():
    """The weights round subnormal numbers of B; what A makes of that stays within the tolerance."""
    left, right = np.full((2, 6, 6), 1e300), np.full((2, 6, 6), 5e-324)
    check = freivalds.Checker(np, CheckSpec("A @ B", (6, 6), (6, 6), "float64", "float64", 0, 2))
    assert (check.check(left, right, left @ right) <= 1).all()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("products", "float16"), ("products", "complex64"), ("sum", "float64"), ("sum", "int16"),
     ("sum", "complex64"), ("uncopied", "float64")],
)  # fmt: skip
def test_an_honest_run_is_proven_end_to_end(tmp_path, kind, dtype):
    """The summary says of how many shards, and how much the CPU has seen."""
    made = computed(tmp_path, kind, (stack if "int" in dtype else noise)((7, 5, 5), dtype))
    found = reduced(made)["end_to_end"]
    assert found["shards"] == 3
    assert found["off"] <= 1
    slow = dtype in ("float16", "int16")
    assert found["host"] == f"{'some' if slow or kind == 'uncopied' else 'all'} of 3"


def test_a_copy_outlives_another_product(tmp_path):
    """Its number is that of the product it was made for; then some matrices are looked at."""
    factories.computed(factories.plan(tmp_path, noise((6, 5, 5), "float32"), shards=2))
    for number, over in enumerate(({"product": "A.T @ A"}, {"product": "A @ B"}, {})):
        right = noise((5, 5), "float32", seed=number) if number else None
        made = factories.plan(
            tmp_path, right=right, input=str(tmp_path / "input.npy"), shards=2,
            **{"product": "A @ B", **over},
        )  # fmt: skip
        job.run_shard(made, "00000")
        own = factories.receipt(made)
        assert own.witness.host == "1 of 3"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_changed_with_its_checksum_is_named(tmp_path, kind):
    """Receipt and ledger vouch for it; its number does not."""
    made = computed(tmp_path, kind)
    forge(made, "00001", spoil)
    with pytest.raises(IntegrityError, match=r"shard 00001: its file .*rm -f .*00001.json"):
        reduced(made)
    assert not made.results.summary.exists()


def test_a_receipt_changed_with_its_file_is_named(tmp_path):
    """Where the contribution is forged too, it does not fit what the factors come to."""
    made = computed(tmp_path)
    forge(made, "00002", lambda array: array.__setitem__((0, 1, 2), 50))
    form = reference.SumForm((5, 5), "float64")
    form.add(np.load(made.results.product("00002")).astype("float64").sum(axis=0).reshape(-1), 0)
    witness_rewritten(made.results.receipt("00002"), contribution=form.value().item())
    with pytest.raises(IntegrityError, match="shard 00002: its products, by its receipt"):
        reduced(made)


@pytest.mark.parametrize("kind", ["products", "sum"])
def test_a_bit_flipped_in_a_ranks_state_is_no_shards_fault(tmp_path, kind, monkeypatch):
    """All files fit, so the sum itself went wrong: nothing is written."""
    made, results = computed(tmp_path, kind), statistics._Total.results

    def flipped(self, matrices):
        found = results(self, matrices)
        found["sum"][...] = 0
        return found

    monkeypatch.setattr(statistics._Total, "results", flipped)
    with pytest.raises(IntegrityError, match="a rank went wrong"):
        reduced(made)
    assert not made.results.statistic("sum").exists()


@pytest.mark.parametrize("kind", ["products", "sum", "uncopied"])
def test_a_device_that_was_given_another_matrix_is_found(tmp_path, kind, monkeypatch):
    """The bytes are right where they are read, and wrong where they are multiplied."""
    left = noise((7, 5, 5), "float32")
    made = factories.copied(factories.plan(tmp_path, left, shards=1, **KINDS[kind]))
    upload, seen = lanes.HostLane.upload, []

    def stale(self, views, target):
        mark = upload(self, views, target)
        if not seen:
            target[:4] = 0x3D
            seen.append(target)
        return mark

    monkeypatch.setattr(lanes.HostLane, "upload", stale)
    with pytest.raises(WrongInput, match=r"shard 00000: .* Suspect the device") as error:
        job.run_shard(made, "00000")
    assert error.value.exit_code == 3
    assert not made.results.receipt("00000").exists()
    assert not quarantine.entries(made.results)


def test_a_wrong_number_of_a_copy_bars_no_device(tmp_path, monkeypatch):
    """It may be the host that took it wrongly: a GPU ends with 75, and is not in quarantine."""
    made = factories.copied(factories.plan(tmp_path, noise((4, 3, 3)), shards=1))
    witness_rewritten(made.results.shard_receipt("00000"), reference=12.5)
    monkeypatch.setattr(backend, "load_backend", lambda *_: (np, {"uuid": "GPU-0"}))
    monkeypatch.setattr(choose, "present", lambda: [])  # whoever asks is told that it is lost
    with pytest.raises(Misled, match=r"rm .*shards/00000\.json, then snakemake") as error:
        job.run_shard(made, "00000")
    assert error.value.exit_code == 75
    assert not quarantine.entries(made.results)
    assert not made.results.receipt("00000").exists()


def test_ranks_name_the_shard_together(tmp_path):
    """Three ranks share the sum, and the second look at the files."""
    made = computed(tmp_path)
    done = factories.mpirun(3, made)
    assert done.returncode == 0, done.stderr
    forge(made, "00000", lambda array: array.__setitem__((1, 2, 3), 9))
    done = factories.mpirun(3, made)
    assert done.returncode == 3
    assert "shard 00000: its file does not come to what its receipt says" in done.stderr


@pytest.mark.parametrize(
    ("over", "names", "why"),
    [
        ({"verify": False}, ["sum"], "verify: false"),
        ({}, ["max"], "there is no sum among the statistics"),
        ({}, ["sum"], "older version"),
    ],
)
def test_what_cannot_be_proven_says_why(tmp_path, over, names, why):
    """The summary has null, and the reason beside it."""
    made = computed(tmp_path, **over)
    if "older" in why:
        factories.rewritten(made.results.receipt("00001"), without="witness")
    found = reduced(made, names)
    assert "end_to_end" not in found
    assert why in found["no_end_to_end"]


@pytest.mark.parametrize("value", ["x", None, float("nan"), True, 10**400])
def test_a_damaged_witness_is_refused(tmp_path, value):
    """It is damage of a receipt, named with its shard."""
    made = computed(tmp_path)
    witness_rewritten(made.results.receipt("00001"), mass=value)
    with pytest.raises(IntegrityError, match="is damaged"):
        reduced(made)


def test_a_copy_whose_receipt_has_no_number_is_used_all_the_same(tmp_path):
    """Copies of older versions: some of their matrices are looked at, and the copy stays."""
    made = factories.copied(factories.plan(tmp_path, noise((4, 3, 3)), shards=1))
    factories.rewritten(made.results.shard_receipt("00000"), without="witness")
    before = made.results.shard("00000").stat().st_mtime_ns
    job.run_shard(made, "00000")
    assert made.results.shard("00000").stat().st_mtime_ns == before
    assert factories.receipt(made).witness.host == "1 of 4"


@pytest.mark.parametrize("kind", ["products", "uncopied"])
def test_numbers_too_large_for_the_cpu_are_no_false_alarm(tmp_path, kind):
    """Its weights are larger than the device's; where that overflows, nothing is compared."""
    made = computed(tmp_path, kind, np.full((3, 2, 2), 1e140))
    assert factories.receipt(made).witness.host == "none"
    assert reduced(made)["end_to_end"]["off"] <= 1
