"""Where the files of a shard lie: side by side up to 1,000 shards, by the thousand beyond."""

from pathlib import Path

import pytest
from shardwise.files import paths
from shardwise.files.paths import Results, id_digits

RESULTS = Results(Path("r"))
PER_SHARD = (
    RESULTS.shard, RESULTS.shard_receipt, RESULTS.product, RESULTS.receipt,
    RESULTS.starts, lambda shard: RESULTS.log("multiply", shard),
)  # fmt: skip


@pytest.mark.parametrize(("shards", "number", "name"), [
    (1000, 0, "00000-k"), (1000, 999, "00999-k"), (1001, 0, "000/0000000-k"),
    (1001, 999, "000/0000999-k"), (1001, 1000, "001/0001000-k"),
])  # fmt: skip
def test_one_more_than_1000_shards_lie_in_folders(shards, number, name):
    """All of them, also the first: one layout holds for all shards of a plan, and its pattern."""
    number = f"{number:0{id_digits(shards)}}"
    tops = "r/shards", "r/shards", "r/products", "r/products", "r/logs/multiply", "r/logs/multiply"
    found = [str(kind(f"{number}-k").with_suffix("")) for kind in PER_SHARD]
    assert found == [f"{top}/{name}" for top in tops]
    pattern = paths.wildcards(f"{number}-k")
    assert pattern.format(thousand=name[:3], shard=number, key="k") == name


def test_folders_are_those_of_the_layout(tmp_path):
    """The folder and its folders of a thousand shards; nothing else in it, and none if missing."""
    for name in ("001", "old"):
        (tmp_path / name).mkdir()
    (tmp_path / "002").touch()
    assert paths.folders(tmp_path) == [tmp_path, tmp_path / "001"]
    assert paths.folders(tmp_path / "missing") == []
