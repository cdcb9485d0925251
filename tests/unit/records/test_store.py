"""Which files of a plan a results folder has: exactly those under the names in the plan."""

import pytest
from shardwise.records import ledger, store
from shardwise.records.store import Store

from tests import factories


@pytest.mark.parametrize("shards", [1000, 1001])
def test_what_lacks_product_or_receipt_is_missing(tmp_path, shards):
    """Flat or in folders of a thousand; files of another plan, or of no run, do not count."""
    over = {"shards": shards, "materialize": False}
    made = factories.repeated(factories.plan(tmp_path, factories.stack((shards, 2, 2)), **over))
    rows, results, own = list(made.shards.values()), made.results, Store(made)
    assert (results.products / "000").exists() == (shards > 1000)
    assert own.missing() == []
    results.receipt(rows[1].name).unlink()
    results.product(rows[-1].name).unlink()
    results.product(rows[0].name).with_name("mine.npy").touch()
    assert own.missing() == [rows[1].shard, rows[-1].shard]
    assert [own.is_whole(row.shard) for row in (rows[0], rows[1], rows[-1])] == [True, False, False]
    assert own.missing_copies() == list(made.shards)
    other = factories.plan(tmp_path, product="A.T @ A", input=str(tmp_path / "input.npy"), **over)
    assert Store(other).missing() == list(other.shards)
    assert own.missing() == [rows[1].shard, rows[-1].shard]


def test_ledger_and_sum_are_of_the_plan_whose_mark_is_there(tmp_path):
    """Writing either removes all former marks first; computing its own, and any ledger's."""
    made = factories.listed(factories.plan(tmp_path, factories.stack((4, 2, 2)), shards=2))
    own, results = Store(made), made.results
    for path in (results.summary, results.statistic("sum")):
        path.touch()
    assert (own.is_listed(), own.is_summed(["sum"])) == (True, False)
    store.mark(results.summed(made.key))
    over = {"product": "A.T @ A", "input": str(tmp_path / "input.npy"), "shards": 2}
    other = factories.listed(factories.plan(tmp_path, **over))
    assert (own.is_listed(), Store(other).is_listed()) == (False, True)
    assert factories.run("multiply", "--plan", other.results.plan, "--shard=00000").returncode == 0
    assert (own.is_summed(["sum"]), Store(other).is_listed()) == (True, False)
    store.mark(results.listed(other.key))
    own.withdraw()
    assert (own.is_summed(["sum"]), Store(other).is_listed()) == (False, False)


def test_the_ledger_leaves_no_temporary_file_of_a_whole_shard(tmp_path):
    """Whichever node its writer was killed on; those of other plans, and other files, stay."""
    made = factories.computed(factories.plan(tmp_path, factories.stack((4, 2, 2)), shards=2))
    paths = [factories.file(made, kind, "00001") for kind in ("product", "receipt", "shard")]
    foreign = [path.with_name(f".{path.name}.gpu1.hpc.edu.123.abcd.tmp") for path in paths]
    names = ".00001-0123456789ab.npy.gpu1.123.abcd.tmp", "mine.tmp"
    kept = [made.results.products / name for name in names]
    for path in (*foreign, *kept):
        path.touch()
    ledger.write(made)
    assert [path for path in (*foreign, *kept) if path.exists()] == kept
