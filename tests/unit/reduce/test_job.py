"""The ledger and the reduce: the right sum from any number of ranks, or none at all."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from shardwise.errors import InputError, IntegrityError
from shardwise.files import pieces
from shardwise.files.checksum import file_checksum
from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.plan import memory, plan, problem
from shardwise.records import ledger, receipts
from shardwise.reduce import job

from tests import factories
from tests.factories import (
    PRODUCTS,
    REFERENCES,
    ROOT,
    SCRIPTS,
    leftovers,
    mpirun,
    noise,
    stack,
)


def computed(made):
    """A plan with all products and the ledger."""
    ledger.write(factories.computed(made))
    return made


def summed_alone(made):
    """The sum of a plan by a world of one rank in this process."""
    from mpi4py import MPI

    job.run(MPI.COMM_SELF, made.results.plan, ["sum"])
    return np.load(made.results.statistic("sum"))


def summed(made, ranks, *words):
    """The sum of a plan by so many ranks."""
    if ranks == 1 and not words:
        return summed_alone(made)
    done = mpirun(ranks, made, *words)
    assert done.returncode == 0, done.stderr
    return np.load(made.results.statistic("sum"))


def nothing_summed(made):
    """No result and no temporary file of a reduce lies in the results."""
    names = {path.name for path in made.results.root.iterdir()}
    return not names & {"sum.npy", "mean.npy", "summary.json"} and not leftovers(made.results.root)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A plan of seven matrices in three shards, computed."""
    return computed(factories.plan(tmp_path_factory.mktemp("whole"), stack((7, 4, 4)), shards=3))


@pytest.fixture
def made(whole, tmp_path):
    """A copy of the computed plan, to damage."""
    shutil.copytree(whole.results.root, tmp_path / "results")
    return plan.load(tmp_path / "results" / "plan.tsv")


def test_no_way_to_cut_and_share_the_work_changes_a_bit(tmp_path):
    """Random stacks, shards, ranks, orders, pieces, batches, and both keeps: the same files."""
    launcher = str(Path(sys.executable).with_name("mpiexec"))
    program = [sys.executable, "-m", "mpi4py", "-m", "tests.reduce_program"]
    done = subprocess.run(
        [launcher, "-n", "4", *program, str(tmp_path), "numpy", "7", "12"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"tried": 12, "differ": []}


def exact_sum(terms):
    """The sum of float64 arrays, rounded once."""
    parts = terms.reshape(len(terms), -1).view("f8")
    return np.array([math.fsum(column) for column in parts.T])


@pytest.mark.parametrize(
    ("keep", "dtype", "most"),
    [("sum", "float16", 5), ("sum", "float64", 1), ("sum", "complex64", 1),
     ("products", "float32", 1), ("products", "complex64", 5), ("products", "int16", 1)],
)  # fmt: skip
def test_sums_have_the_same_bits_however_they_come_about(tmp_path, monkeypatch, keep, dtype, most):
    """Shards, batches, slabs, stripes and ranks: the sum is rounded once."""
    left, seen = noise((11, 3, 4), dtype), set()
    ways = (1, 1, 10**6, 2**20), (3, 1, 70, 16), (11, 1, 1, 2**20), (2, most, 40, 2**20)
    for shards, ranks, size, piece in ways:
        monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", piece)
        monkeypatch.setattr(pieces, "SLAB_BYTES", size)
        monkeypatch.setattr(memory, "HOST_BATCH_BYTES", size)
        over = {"keep": keep, "shards": shards, "materialize": False, "product": "A.T @ A"}
        made = computed(factories.plan(tmp_path / str(shards), left, **over))
        found = summed(made, ranks)
        assert found.dtype == made.problem.sum_dtype
        seen.add(found.tobytes())
    whole = factories.multiplied(made, left)
    if dtype == "int16":
        assert seen == {whole.sum(axis=0, dtype="int64").tobytes()}
    else:
        assert seen == {exact_sum(whole.astype(found.dtype)).tobytes()}


def test_the_shards_of_a_kept_sum_may_be_of_any_scale(tmp_path):
    """One shard's sum far above another's: small terms count where they can, to the last bit."""
    left = np.ones((9, 1, 1))
    left[:, 0, 0] = [2.0**400, 1, 3, 2.0**-30, -(2.0**-40), 5, 2.0**-500, 7, 11]
    right = np.ones((9, 1, 1))
    right[:, 0, 0] = [1, 1, -1, 1, 1, 2.0**395, 1, 1, 1]
    over = {"product": "A @ B", "keep": "sum", "shards": 5, "materialize": False}
    made = computed(factories.plan(tmp_path, left, right, **over))
    terms = (left @ right).ravel()
    assert summed_alone(made)[0, 0] == math.fsum(terms)


@pytest.mark.parametrize("reproducible", [True, False])
def test_integers_beyond_int64_that_cancel_over_shards_are_exact(tmp_path, reproducible):
    """Partial totals may pass the range of int64, if only the sum of all does not."""
    left = np.full((8, 1, 2), [2**31, 1], "int64")
    right = np.full((8, 2, 1), [[2**31 - 1], [7]], "int64")
    right[4:] = [[-(2**31) + 1], [5]]  # four shards up to 4 · 2⁶² and more, and four back
    over = {"product": "A @ B", "keep": "sum", "shards": 4, "reproducible": reproducible}
    made = computed(factories.plan(tmp_path, left, right, materialize=False, **over))
    for shard in factories.products(made)[[0, 3]].tolist():
        [[[high]], [[low]]] = shard
        assert abs(high * 2**32 + low) > 2**62
    assert int(summed(made, 2)[0, 0]) == 4 * 7 + 4 * 5


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_integers_whose_sum_does_not_fit_are_refused(tmp_path, keep):
    """The reduce, which knows the whole sum, says so; no shard does."""
    left = np.full((3, 1, 1), 2**31, "int64")
    made = computed(factories.plan(tmp_path, left, keep=keep, shards=3, materialize=False))
    with pytest.raises(InputError, match="the sum of the integer products does not fit int64"):
        summed_alone(made)
    assert nothing_summed(made)


@pytest.mark.parametrize(
    ("dtype", "product"),
    [*zip(("float16", "float32", "float64", "complex64"), PRODUCTS, strict=True)],
)
def test_the_error_of_sums_inside_the_gemm_is_bounded(tmp_path, monkeypatch, dtype, product):
    """reproducible: false: γ(n k) of the moduli for a batch, and float64 sums of the batches."""
    left = noise((23, 6, 6), dtype)
    right = noise((23, 6, 6), dtype, 1) if product == "A @ B" else None
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 5 * left[0].nbytes)
    over = {"keep": "sum", "reproducible": False, "shards": 3, "product": product}
    made = computed(factories.plan(tmp_path, left, right, materialize=False, **over))
    found = summed_alone(made)
    assert found.dtype == made.problem.sum_dtype
    reference = REFERENCES[product]
    wide = [
        None if x is None else x.astype("c32" if "c" in dtype else "f16") for x in (left, right)
    ]
    exact = reference(*wide).sum(axis=0)
    moduli = reference(*(None if x is None else abs(x) for x in wide)).sum(axis=0)
    unit = 2.0 ** (-53 if dtype == "float64" else -24)
    inner = 5 * 6 * (4 if "c" in dtype else 1)  # matrices of a batch; products of two parts
    gamma = inner * unit / (1 - inner * unit)
    assert (abs(found - exact) <= (gamma + 23 * 2.0**-53) * moduli).all()


def test_the_mean_is_the_sum_over_the_number_of_matrices(made):
    """The mean is written beside sum, both with their checksums in the summary."""
    found = summed(made, 2, "--ranks", 2, "--statistics", "sum", "mean")
    np.testing.assert_array_equal(np.load(made.results.statistic("mean")), found / 7)
    summary = json.loads(made.results.summary.read_text())
    assert summary["matrices"] == 7
    assert summary["ranks"] == 2
    for name in ("sum", "mean"):
        path = made.results.statistic(name)
        assert summary["files"][name]["checksum"] == checksum_of(path)


def checksum_of(path):
    """The checksum of a file of a result."""
    return file_checksum(path, 4096, *pieces.checksum_pieces(4 * 4 * 8))


def test_other_ranks_than_asked_are_refused(made):
    """A launcher that starts another world is bad config, on every rank."""
    done = mpirun(2, made, "--ranks", 3)
    assert done.returncode == 2
    assert "reduce: asked for 3 ranks, but MPI has 2: the launcher does not fit" in done.stderr
    assert "see the line 'mpi' of the profile" in done.stderr
    assert nothing_summed(made)


def flip_last_byte(path):
    """Damage one element."""
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


DAMAGE = {
    "product missing": lambda r: r.product("00001").unlink(),
    "product flipped": lambda r: flip_last_byte(r.product("00001")),
    "other backend": lambda r: factories.rewritten(r.receipt("00001"), backend="cupy"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_the_reduce_refuses_and_leaves_no_sum(made, how):
    """Damage after the ledger was written ends all ranks with 3; one error names the repair."""
    DAMAGE[how](made.results)
    done = factories.run("reduce", "--plan", made.results.plan, "--ranks", 3)
    assert done.returncode == 3, done.stderr
    assert "00001" in done.stderr
    cure = "set backend: numpy or backend: cupy" if how == "other backend" else "rm -f "
    assert cure in done.stderr
    assert "snakemake" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("ERROR") == 1
    assert "abort" not in done.stderr.lower()
    assert nothing_summed(made)


def test_all_shards_are_named_whichever_rank_judges_them(made):
    """Each rank judges a part of the receipts; one error tells all that are refused."""
    for shard in ("00000", "00002"):
        flip_last_byte(made.results.receipt(shard))
    done = mpirun(3, made)
    assert done.returncode == 3, done.stderr
    assert "2 of 3 shards cannot be summed" in done.stderr
    assert "/products/{00000,00002}.json" in done.stderr
    assert nothing_summed(made)


def test_a_file_that_the_plan_does_not_make_is_refused(made):
    """Whole by its receipt, but of another shape: no rank reads beyond its end."""
    path, receipt = made.results.product("00001"), made.results.receipt("00001")
    other = np.load(path)[:, :2]
    with commit(path) as file, StackWriter(file, other.shape, other.dtype) as writer:
        writer.append(np.ascontiguousarray(other))
        checksum = writer.checksum()
    sizes = writer.row_bytes, writer.piece_bytes
    facts = receipts.describe_file(path, other.shape, other.dtype.name, checksum, *sizes)
    factories.rewritten(receipt, file=msgspec.to_builtins(facts))
    ledger.write(made)
    with pytest.raises(IntegrityError, match=r"shard 00001: .* which the plan does not make it"):
        summed_alone(made)
    assert nothing_summed(made)


def test_a_damaged_ledger_is_refused(made):
    """It must say what the receipts say, and Snakemake makes it again only where it is gone."""
    path = made.results.ledger
    path.write_text(path.read_text().replace("numpy", "cupy"))
    with pytest.raises(IntegrityError, match=r"does not match .*; remove it and run snakemake"):
        ledger.read(made)
    path.unlink()
    os.mkfifo(path)  # to open it would wait for ever
    with pytest.raises(IntegrityError, match="is not a file; remove it and run snakemake"):
        ledger.read(made)


def test_the_ledger_fits_its_own_receipts(made):
    """A whole number among broken ones, or a word that needs quotes, is read as it was written."""
    started = json.loads(made.results.receipt("00001").read_text())["started"]
    factories.rewritten(
        made.results.receipt("00001"), started=int(started), finished=int(started) + 3
    )
    factories.rewritten(made.results.receipt("00002"), node='a "node"')
    ledger.write(made)
    assert [row.node for row in ledger.read(made)][2] == 'a "node"'


@pytest.mark.parametrize("key", ["attempt", "finished", "node"])
def test_a_ledger_has_no_cell_without_bounds(made, key):
    """What is too long for any table is refused with the receipt that says it."""
    factories.rewritten(
        made.results.receipt("00001"), **{key: "9" * 1000 if key == "node" else 10**400}
    )
    with pytest.raises(IntegrityError, match=r"00001\.json is damaged") as caught:
        ledger.write(made)
    assert len(str(caught.value)) < 1000


def test_the_ledger_has_a_row_a_shard(made):
    """Rows stand in the plan's order, with ranges, checksums and who computed them."""
    rows = [line.split("\t") for line in made.results.ledger.read_text().splitlines()]
    assert [row[0] for row in rows[1:]] == ["00000", "00001", "00002"]
    assert [row[1:4] for row in rows[1:]] == [["0", "2", "2"], ["2", "4", "2"], ["4", "7", "3"]]
    assert {row[rows[0].index("backend")] for row in rows[1:]} == {"numpy"}


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}, {"keep": "sum", "reproducible": False}])
def test_a_sum_that_overflows_is_refused(tmp_path, over):
    """Products that fit, but whose sum does not, end with 2 and leave no sum."""
    left = np.zeros((3, 2, 2))
    left[:, 1, 1] = 1.2e154  # one of these squares fits, not three
    made = computed(factories.plan(tmp_path, left, shards=3, materialize=False, **over))
    with pytest.raises(InputError, match=r"the sum overflows float64 at element \[1, 1\]") as told:
        summed_alone(made)
    assert "is finite" in str(told.value) or "all products are finite there" in str(told.value)
    assert nothing_summed(made)


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}, {"keep": "sum", "reproducible": False}])
def test_products_that_were_allowed_to_be_nan_are_traced(tmp_path, over):
    """File, row and column of the input are told, and what a correction computes again."""
    for i in range(6):
        matrix = factories.stack((4, 4), seed=i)
        matrix[2, 1] = np.nan if i == 3 else 1
        factories.save(tmp_path / "in" / f"{i}.npy", matrix)
    over |= {"input": str(tmp_path / "in"), "shards": 3, "materialize": False}
    made = computed(factories.plan(tmp_path, nonfinite="allow", **over))
    made = factories.plan(tmp_path, **over)  # the same products
    ledger.write(made)
    with pytest.raises(InputError) as caught:
        summed_alone(made)
    told = str(caught.value)
    what = "the sum of shard 00001" if "keep" in over else "the product of matrix 3"
    assert f"the sum is nan at element [0, 1]: so is {what}, which was computed" in told
    place = f"input: nan at row 2, column 1 of {tmp_path}/in/3.npy (counted from 0)"
    assert place in told
    assert nothing_summed(made)


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}, {"keep": "sum", "reproducible": False}])
def test_allowed_nonfinite_numbers_reach_the_sum(tmp_path, over):
    """nonfinite: allow sums as IEEE 754 says: NaN, Inf, and NaN of both infinities."""
    left, right = np.zeros((3, 5, 1)), np.ones((3, 1, 1))
    left[:, :, 0] = [[1, np.nan, np.inf, np.inf, 1], [2, 3, 4, 5, 6], [3, 1, 1, -np.inf, -np.inf]]
    over = {"product": "A @ B", "shards": 2, "nonfinite": "allow", "materialize": False, **over}
    made = computed(factories.plan(tmp_path, left, right, **over))
    expected = [6, np.nan, np.inf, np.nan, -np.inf]
    np.testing.assert_array_equal(summed_alone(made)[:, 0], expected)


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_more_products_than_bins_count_are_refused(tmp_path, monkeypatch, keep):
    """The reduce counts the products of all shards."""
    over = {"keep": keep, "shards": 2, "materialize": False}
    made = computed(factories.plan(tmp_path, stack((5, 2, 2)), **over))
    monkeypatch.setattr(problem, "MAX_TERMS", 5)
    np.testing.assert_array_equal(summed_alone(made), (stack((5, 2, 2)) @ stack((5, 2, 2))).sum(0))
    monkeypatch.setattr(problem, "MAX_TERMS", 4)
    with pytest.raises(InputError, match="the sum is of more than 4 products"):
        summed_alone(made)


@pytest.mark.parametrize("how", ["flipped", "receipt of products", "other array"])
def test_damaged_partial_sums_are_refused(tmp_path, how):
    """Planes are checked as products are, and are never taken for them."""
    over = {"keep": "sum", "shards": 2, "materialize": False}
    made = computed(factories.plan(tmp_path, stack((5, 2, 2)), **over))
    path, receipt = made.results.product("00001"), made.results.receipt("00001")
    if how == "flipped":
        flip_last_byte(path)
    elif how == "receipt of products":
        factories.rewritten(receipt, keep="products")
    else:
        np.save(path, np.zeros((5, 2, 2)))
    with pytest.raises(IntegrityError, match=r"00001|does not match the receipts"):
        summed_alone(made)
    assert nothing_summed(made)
