"""Whole files that are damaged under their old time stamps are named, and their repairs right."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from shardwise.errors import IntegrityError, ShardwiseError
from shardwise.multiply import job
from shardwise.plan import plan
from shardwise.records import failures, ledger
from shardwise.records.store import Store

from tests import factories

STACK = factories.stack((6, 4, 4))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A plan whose shards are whole, with its ledger."""
    return factories.listed(factories.plan(tmp_path_factory.mktemp("whole"), STACK, shards=3))


@pytest.fixture
def made(tmp_path, whole):
    """A copy of `whole`, time stamps kept."""
    shutil.copytree(whole.results.root, tmp_path / "results")
    return plan.load(tmp_path / "results" / "plan.tsv")


def flip(path, seed):
    """Flip one bit of a file, drawn by a seed; its time stamp is kept."""
    random = np.random.default_rng(seed)
    factories.flip(path, random.integers(path.stat().st_size), int(random.integers(8)))


def cut(path, seed):
    """Make a file shorter."""
    raw = path.read_bytes()
    factories.kept(path, raw[: np.random.default_rng(seed).integers(len(raw))])


def folder(path, seed):
    """Put a folder in the place of a file."""
    path.unlink()
    path.mkdir()


def repaired(made, error):
    """Run the command that an error prints, then the stages of a rerun; return the sum."""
    (command,) = re.findall(r"((?:mv -T|rm -f) .*), then start the run", str(error.value))
    subprocess.run(["bash", "-c", command], check=True)
    lacking = Store(made).missing()
    assert lacking
    for shard in lacking:
        job.run_shard(made, shard)
    ledger.write(made)
    return factories.reduced(made)


def ways(flips, more):
    """Bits that are flipped and files that are cut off; more of them at night."""
    few = [*((flip, seed) for seed in range(flips)), *((cut, seed) for seed in range(2))]
    rest = [*((flip, flips + seed) for seed in range(more)), (cut, 2), (cut, 3)]
    return [*few, *(factories.nightly(*way) for way in rest)]


OTHERS = [
    (folder, 0), (lambda path, _: factories.pipe(path), 0),
    (lambda path, _: factories.astray(path), 0),
]  # fmt: skip


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize(("harm", "seed"), [*ways(8, 4), *OTHERS])
def test_a_damaged_product_is_named_and_repaired(made, harm, seed):
    """The reduce refuses it; the command that it prints, and a rerun, give the right sum."""
    harm(factories.file(made, "product", "00001"), seed)
    try:
        total = factories.reduced(made)  # a flipped bit of the header may change nothing
    except IntegrityError:
        with pytest.raises(IntegrityError, match="00001") as error:
            factories.reduced(made)
        total = repaired(made, error)
    np.testing.assert_array_equal(total, (STACK @ STACK).sum(axis=0))


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize(("harm", "seed"), [*ways(16, 24), *OTHERS[1:]])
def test_a_damaged_receipt_is_named_and_repaired(made, harm, seed):
    """It counts as missing, or is refused by name, or its damage does not affect the sum."""
    harm(factories.file(made, "receipt", "00001"), seed)
    said = "00001"
    for _ in range(2):
        for shard in Store(made).missing():
            job.run_shard(made, shard)
        try:
            ledger.write(made)
            total = factories.reduced(made)
            break
        except IntegrityError as error:
            said = str(error)
            factories.file(made, "receipt", "00001").unlink()
    assert "00001" in said
    np.testing.assert_array_equal(total, (STACK @ STACK).sum(axis=0))


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize(("harm", "seed"), ways(8, 4))
def test_a_damaged_copy_is_refused(made, harm, seed):
    """No product is made of it; if its receipt is removed, as the error says, a rerun is right."""
    before = factories.file(made, "product", "00001").read_bytes()
    harm(factories.file(made, "shard", "00001"), seed)
    said = "00001"
    try:
        job.run_shard(made, "00001")
    except ShardwiseError as error:
        said = str(error)
        factories.file(made, "shard_receipt", "00001").unlink()
        failures.begin_run()
        job.run_shard(made, "00001")
    assert "00001" in said
    assert factories.file(made, "product", "00001").read_bytes() == before


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize("name", ["plan.tsv", "plan.json", "sources.tsv", "ledger.tsv"])
@pytest.mark.parametrize(("harm", "seed"), ways(6, 6))
def test_a_damaged_table_is_refused(made, whole, name, harm, seed):
    """Its reader refuses it by name, or reads what was written."""
    path = made.results.root / name
    harm(path, seed)
    said = "plan.json"
    try:
        read = plan.load(made.results.plan)
        assert (read.shards, read.sources) == (whole.shards, whole.sources)
        assert replace(read.facts, checksums={}) == replace(whole.facts, checksums={})
        np.testing.assert_array_equal(factories.reduced(read), (STACK @ STACK).sum(axis=0))
    except ShardwiseError as error:
        said = str(error)
    assert str(path) in said or "plan.json" in said
