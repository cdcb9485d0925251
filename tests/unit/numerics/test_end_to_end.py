"""The end-to-end proof: honest runs never alarm, and damage on the way is named."""

import json

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.files import checksum, npy
from shardwise.numerics import end_to_end, statistics
from shardwise.records import ledger

from tests import factories
from tests.factories import noise, stack

LEFT = noise((7, 5, 5), "float32")
SUM, IN_PLACE = {"keep": "sum"}, {"materialize": False}


def computed(folder, left=LEFT, **over):
    """A plan of three shards, multiplied, with its ledger."""
    return factories.listed(factories.plan(folder, left, shards=3, **over))


def reduced(made, *names):
    """The summary of a reduce by one rank in this process."""
    factories.reduced(made, *names)
    return json.loads(made.results.summary.read_bytes())


def test_weights_never_change():
    """Receipts of different days and versions are compared, so all must use the same weights."""
    whole = [-640183754803002333, 870607051800945785, 573325905974314307]
    assert end_to_end.weights("l", 3, True).tolist() == whole
    real = end_to_end.weights("r", 4096, False)
    assert ((np.abs(real) >= 0.5) & (np.abs(real) < 1)).all()
    assert abs(np.sign(real).mean()) < 0.05
    assert (end_to_end.weights("l", 9, False) != real[:9]).all()


@pytest.mark.parametrize(("left", "over"), [
    (noise((7, 5, 5), "float16"), {}), (stack((7, 5, 5), "int16"), SUM),
    (noise((7, 5, 5), "complex64"), SUM), (noise((7, 5, 5), "float64"), IN_PLACE),
    (np.full((3, 2, 2), 1e140), {}),  # near the largest numbers
])  # fmt: skip
def test_an_honest_run_is_proven_end_to_end(tmp_path, left, over):
    """The summary says for how many shards."""
    found = reduced(computed(tmp_path, left, **over))["end_to_end"]
    assert found["shards"] == 3
    assert found["off"] <= 1


@pytest.mark.parametrize("over", [{}, SUM, IN_PLACE])
def test_a_file_changed_with_its_checksum_is_named(tmp_path, over):
    """Its checksum fits receipt and ledger, but its sum does not fit the receipt's witness."""
    made = computed(tmp_path, **over)
    path, receipt = (factories.file(made, kind, "00001") for kind in ("product", "receipt"))
    array = np.load(path, "r+")
    array[-1].reshape(-1)[-1] += 1
    array.flush()
    file = json.loads(receipt.read_bytes())["file"]
    pieces = file["row_bytes"], file["piece_bytes"]
    file["checksum"] = checksum.file_checksum(path, npy.DATA_OFFSET, *pieces)
    factories.rewritten(receipt, file=file)
    ledger.write(made)
    with pytest.raises(IntegrityError, match=r"shard 00001: its file .*rm -f .*00001-.*json"):
        reduced(made)
    assert not made.results.summary.exists()


@pytest.mark.parametrize("over", [{}, SUM])
def test_a_bit_flipped_in_a_ranks_state_is_no_shards_fault(tmp_path, over, monkeypatch):
    """All files match their receipts, so a rank is blamed, and nothing is written."""
    made, results = computed(tmp_path, **over), statistics._Total.results

    def flipped(self, matrices):
        found = results(self, matrices)
        found["sum"][...] = 0
        return found

    monkeypatch.setattr(statistics._Total, "results", flipped)
    with pytest.raises(IntegrityError, match="a rank went wrong"):
        reduced(made)
    assert not made.results.statistic("sum").exists()


@pytest.mark.parametrize(("over", "name"), [({"verify": False}, "sum"), ({}, "max")])
def test_what_cannot_be_proven_is_not_called_so(tmp_path, over, name):
    """Without a witness of each shard, or without a sum, the summary has no end_to_end."""
    assert "end_to_end" not in reduced(computed(tmp_path, **over), name)
