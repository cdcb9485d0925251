"""Where the files of a shard lie: side by side up to 1,000 shards, by the thousand beyond."""

from collections import Counter
from pathlib import Path

import pytest
from shardwise.files import paths
from shardwise.files.paths import Results
from shardwise.plan import cut

RESULTS = Results(Path("r"))
PER_SHARD = (
    RESULTS.shard, RESULTS.shard_receipt, RESULTS.product, RESULTS.receipt,
    RESULTS.starts, lambda shard: RESULTS.log("multiply", shard),
)  # fmt: skip


def test_up_to_1000_shards_lie_side_by_side():
    """The last id of 1,000 is still a plain name in the one folder."""
    ids = cut.shard_ids(1000)
    assert ids[-1] == "00999"
    assert {kind(shard).parent for kind in PER_SHARD for shard in ids} == {
        Path("r/shards"), Path("r/products"), Path("r/logs/multiply")
    }  # fmt: skip


def test_one_more_shard_puts_all_into_folders():
    """Also the first: one layout holds for all shards of a plan."""
    ids = cut.shard_ids(1001)
    assert str(RESULTS.product(ids[0])) == "r/products/000/0000000.npy"
    assert str(RESULTS.receipt(ids[-1])) == "r/products/001/0001000.json"
    assert all(kind(ids[-1]).parent.name == "001" for kind in PER_SHARD)


def test_no_folder_of_the_largest_plan_has_more_than_1000_shards():
    """Nor has the folder above more than 1,000 of these."""
    ids = cut.shard_ids(cut.MAX_SHARDS)
    counts = Counter(paths.place(shard).rpartition("/")[0] for shard in ids)
    assert set(counts.values()) == {1000}
    assert len(counts) == 1000


@pytest.mark.parametrize("shard", ["00007", "0012345"])
def test_patterns_name_the_same_file(shard):
    """A rule of Snakemake follows `place`."""
    pattern = str(RESULTS.product(paths.wildcards(shard)))
    assert pattern.format(shard=shard, thousand="012") == str(RESULTS.product(shard))


def test_folders_are_those_of_the_layout(tmp_path):
    """The folder, and those of a thousand shards; not what else lies there, nor what is missing."""
    assert list(paths.folders(tmp_path / "missing")) == []
    (tmp_path / "001").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "002").touch()
    assert list(paths.folders(tmp_path)) == [tmp_path, tmp_path / "001"]
