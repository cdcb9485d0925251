"""The ledger and the reduce: the right sum from any number of ranks, or none at all."""

import json
import shutil

import numpy as np
import pytest
from shardwise import ledger, multiply
from shardwise.errors import IntegrityError

from tests import factories
from tests.factories import copied, leftovers, mpirun, noise, products, stack


def computed(made):
    """A plan with all products and the ledger."""
    for shard_id in copied(made).shards:
        multiply.run_shard(made, shard_id)
    ledger.write(made)
    return made


def summed(made, ranks, *words):
    """The sum of a plan by so many ranks."""
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
    return factories.planfile.load(tmp_path / "results" / "plan.tsv")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int16"])
def test_the_sum_has_the_same_bits_on_any_ranks(tmp_path, dtype):
    """One, two, three or more ranks than elements: the sum of the products, bit by bit."""
    left = stack((7, 2, 2), dtype) if dtype == "int16" else noise((7, 2, 2), dtype)
    made = computed(factories.plan(tmp_path, left, shards=3))
    wide = {"int16": "int64", "float32": "float64", "complex64": "complex128"}[dtype]
    expected = np.zeros((2, 2), wide)
    for matrix in products(made):
        expected += matrix
    for ranks in (1, 2, 3, 5):
        found = summed(made, ranks)
        assert found.dtype == wide
        assert found.tobytes() == expected.tobytes()


def test_the_sum_has_the_same_bits_however_the_stack_is_cut(tmp_path):
    """One shard or seven: the same sum of products."""
    left = noise((7, 5, 5), "float64")
    seen = {
        summed(computed(factories.plan(tmp_path / str(n), left, shards=n)), 2).tobytes()
        for n in (1, 3, 7)
    }
    assert len(seen) == 1


def test_the_kept_sum_of_one_shard_has_the_bits_of_the_kept_products(tmp_path):
    """In one shard, keep: sum adds the same products in the same order as the reduce."""
    left = noise((7, 5, 5), "float64")
    seen = set()
    for keep, count in (("products", 3), ("sum", 1)):
        made = computed(factories.plan(tmp_path / keep, left, shards=count, keep=keep))
        seen.add(summed(made, 2).tobytes())
    assert len(seen) == 1


def test_kept_sums_of_small_integers_are_exact(tmp_path):
    """keep: sum of integers as floats loses nothing."""
    left = stack((7, 5, 5), "float32")
    made = computed(factories.plan(tmp_path, left, shards=3, keep="sum"))
    np.testing.assert_array_equal(summed(made, 2), (left.astype("f8") @ left).sum(axis=0))


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
    """The checksum of a file."""
    from shardwise.arrays import PIECE_BYTES, file_checksum

    return file_checksum(path, 4096, PIECE_BYTES)


def test_other_ranks_than_asked_are_refused(made):
    """A launcher that starts another world is bad config, on every rank."""
    done = mpirun(2, made, "--ranks", 3)
    assert done.returncode == 2
    assert "asked for 3 ranks, but MPI has 2" in done.stderr
    assert nothing_summed(made)


def test_ranks_split_over_several_blocks(made, monkeypatch):
    """A bounded block at a time gives the same arrays as the whole file."""
    from shardwise import plan, reduce

    entry = ledger.read(made)[0]
    expected = np.load(entry.path).reshape(entry.rows, 16)[:, 3:11]
    monkeypatch.setattr(plan, "SLAB_BYTES", 1)
    blocks = list(reduce._blocks(entry, 16, 3, 11))
    assert len(blocks) == entry.rows
    np.testing.assert_array_equal(np.concatenate(blocks), expected)


def flip_last_byte(path):
    """Damage one element."""
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def edit(path, **values):
    """Change a receipt."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


DAMAGE = {
    "product missing": lambda r: r.product("00001").unlink(),
    "receipt missing": lambda r: r.receipt("00001").unlink(),
    "product flipped": lambda r: flip_last_byte(r.product("00001")),
    "product truncated": lambda r: r.product("00001").write_bytes(
        r.product("00001").read_bytes()[:-8]
    ),
    "product of another shard": lambda r: shutil.copy(r.product("00002"), r.product("00001")),
    "product empty": lambda r: r.product("00001").write_bytes(b""),
    "receipt empty": lambda r: r.receipt("00001").write_bytes(b""),
    "receipt without file": lambda r: edit(r.receipt("00001"), file=None),
    "receipt is a list": lambda r: r.receipt("00001").write_bytes(b"[]"),
    "receipt without device": lambda r: edit(r.receipt("00001"), device=None),
    "receipt with a bad time": lambda r: edit(r.receipt("00001"), finished="x"),
    "receipt of another shard": lambda r: shutil.copy(r.receipt("00002"), r.receipt("00001")),
    "other fingerprint": lambda r: edit(r.receipt("00001"), fingerprint="0" * 16),
    "other range": lambda r: edit(r.receipt("00001"), start=0),
    "other schema": lambda r: edit(r.receipt("00001"), schema=2),
    "other backend": lambda r: edit(r.receipt("00001"), backend="cupy"),
}


@pytest.mark.parametrize("how", [d for d in DAMAGE if d != "product flipped"])
def test_the_ledger_refuses_and_says_how_to_repair(made, how):
    """What is missing, foreign or damaged is named by its shard, with the command that repairs."""
    made.results.ledger.unlink()
    DAMAGE[how](made.results)
    with pytest.raises(IntegrityError) as caught:
        ledger.write(made)
    told = str(caught.value)
    assert "00001" in told
    cure = "set backend: numpy or backend: cupy" if how == "other backend" else "rm -f "
    assert cure in told
    assert "snakemake" in told
    assert not made.results.ledger.exists()


@pytest.mark.parametrize(
    "how",
    ["product missing", "receipt missing", "product flipped", "product of another shard",
     "other fingerprint", "other backend"],
)  # fmt: skip
def test_the_reduce_refuses_and_leaves_no_sum(made, how):
    """Damage after the ledger was written still ends all ranks with 3 and a repairing command."""
    DAMAGE[how](made.results)
    done = mpirun(2, made)
    assert done.returncode == 3, done.stderr
    assert "00001" in done.stderr
    assert "snakemake" in done.stderr
    assert "Traceback" not in done.stderr
    assert nothing_summed(made)


def test_a_damaged_ledger_is_refused(made):
    """The ledger must say what the receipts say."""
    raw = made.results.ledger.read_text()
    for bad in (raw.replace("numpy", "cupy"), raw.rsplit("\n", 2)[0] + "\n", "", "a\tb\n"):
        made.results.ledger.write_text(bad)
        with pytest.raises(IntegrityError, match="snakemake again"):
            ledger.read(made)
    made.results.ledger.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        ledger.read(made)


def test_the_ledger_has_a_row_a_shard(made):
    """Rows stand in the plan's order, with ranges, checksums and who computed them."""
    rows = [line.split("\t") for line in made.results.ledger.read_text().splitlines()]
    assert [row[0] for row in rows[1:]] == ["00000", "00001", "00002"]
    assert [row[1:4] for row in rows[1:]] == [["0", "2", "2"], ["2", "4", "2"], ["4", "7", "3"]]
    assert {row[rows[0].index("backend")] for row in rows[1:]} == {"numpy"}


@pytest.mark.parametrize(("dtype", "value"), [("float64", 1.2e154), ("int64", 2**31 - 1)])
def test_a_sum_that_overflows_is_refused(tmp_path, dtype, value):
    """Products that fit, but whose sum does not, end with 2 and leave no sum."""
    left = np.zeros((3, 2, 2), dtype)
    left[:, 1, 1] = value  # two of these squares fit, not three
    made = computed(factories.plan(tmp_path, left, shards=3))
    done = mpirun(2, made)
    assert done.returncode == 2, done.stderr
    assert (
        "does not fit int64" in done.stderr or "overflows float64 at element [1, 1]" in done.stderr
    )
    assert nothing_summed(made)


def test_allowed_nonfinite_numbers_reach_the_sum(tmp_path):
    """nonfinite: allow sums NaN to NaN."""
    left = stack((3, 2, 2), "float64")
    left[1, 0, 0] = np.nan
    made = computed(factories.plan(tmp_path, left, shards=2, nonfinite="allow"))
    assert np.isnan(summed(made, 2)).any()
